"""What a communicator's calls have done so far, and where a profiler sees them."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass

import torch


@dataclass(slots=True)
class CallCounters:
    """Of one rank, since it joined."""

    exchanges: int = 0
    """Calls that moved something."""
    sent_bytes: int = 0
    """To peers, not to itself."""
    waits: int = 0
    """For peers; one covers all tensors or tags of its call."""
    timeouts: int = 0
    """1 once the group broke because a peer was late; it breaks only once."""

    def count(self, sent_bytes: int, *, waits: int) -> None:
        """One call."""
        self.exchanges += 1
        self.sent_bytes += sent_bytes
        self.waits += waits

    def plain(self) -> dict[str, int]:
        """For ``describe``."""
        return asdict(self)


class Ranges:
    """NVTX ranges around the calls of a communicator between GPUs; nothing elsewhere."""

    def __init__(self, device: torch.device) -> None:
        self._shown = device.type == "cuda" and torch.version.cuda is not None

    def around(self, name: str) -> AbstractContextManager[object]:
        """A range from entering to leaving."""
        return _Range(name) if self._shown else _NOTHING


class _Range:
    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> None:
        torch.cuda.nvtx.range_push(self._name)  # type: ignore[no-untyped-call]

    def __exit__(self, *error: object) -> None:
        torch.cuda.nvtx.range_pop()  # type: ignore[no-untyped-call]


_NOTHING = nullcontext()
