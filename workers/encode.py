"""Entry of the encode process: ``python -m ithaka.workers.encode --control-fd N --parent-pid P``."""

from __future__ import annotations

from collections.abc import Sequence

from ithaka.workers import contract
from ithaka.workers.child_entry import begin
from ithaka.workers.child_log import configure_child_log
from ithaka.workers.child_socket import close_fds


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status 0 after Shutdown, 1 when the server is gone."""
    beginning = begin(contract.ENCODE_ENTRY, contract.ConfigureEncode, argv)
    if beginning is None:
        return 1
    close_fds(beginning.fds)
    configure = beginning.configure
    configure_child_log(configure.log_level, configure.log_format, process=configure.name)
    # FFmpeg is loaded only now, when the parent is known to live.
    from ithaka.workers.encoding.process import EncodeProcess

    return EncodeProcess(beginning.control, configure, beginning.faults).run()


if __name__ == "__main__":
    raise SystemExit(main())
