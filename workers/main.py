"""Entry of a rank: ``python -m ithaka.workers.main --control-fd N --parent-pid P``."""

from __future__ import annotations

import gc
import logging
import os
import sys
from collections.abc import Sequence

from ithaka.workers import contract
from ithaka.workers.child_entry import begin
from ithaka.workers.child_log import configure_child_log
from ithaka.workers.stages.contract import STAGES_APART


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status 0 after Shutdown, 1 after a failure (reported as WorkerFailed where the server still listens)."""
    beginning = begin(contract.WORKER_ENTRY, contract.ConfigureRank, argv)
    if beginning is None:
        return 1
    # Loading makes a million objects that stay; searching them for garbage again and again takes a fifth of the start.
    gc.disable()
    configure = beginning.configure
    placement = configure.placement
    name = {"stage": placement.stage} if placement.stage in STAGES_APART else {"rank": configure.rank}
    configure_child_log(configure.log_level, configure.log_format, group=configure.group, **name)
    num_threads = configure.num_threads or max(1, len(os.sched_getaffinity(0)) // placement.num_processes)
    # Read once, when torch is loaded, which is only now.
    os.environ["OMP_NUM_THREADS"] = str(num_threads)
    from ithaka.workers.rank import serve_rank

    return serve_rank(beginning.control, configure, beginning.fds, num_threads, beginning.faults)


if __name__ == "__main__":
    status = main()
    logging.shutdown()
    sys.stderr.flush()
    # Everything was closed in order; the interpreter's own end would only take torch apart, for most of a second.
    os._exit(status)
