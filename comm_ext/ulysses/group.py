"""The ranks that share one communicator, and the two descriptors that bind them. No torch here: a supervisor may load it.

In the parent, once per life of a group::

    descriptors = GroupDescriptors.create(num_ranks=2)
    for rank in range(2):
        subprocess.Popen([..., str(rank), *map(str, descriptors.fds)], pass_fds=descriptors.fds)
    descriptors.close()            # the children hold what they need; nothing has a name, nothing can be left behind

In the child::

    group = RankGroup.from_fds(rank=0, num_ranks=2, fds=(7, 8))
    with UlyssesCommunicator(group, max_bytes=16 << 20) as communicator:    # takes the descriptors over, closes them
        ...

One group serves one communicator, from its constructor to its close. A group that is restarted gets new descriptors.
Ranks need not be children of one parent, but must share a pid namespace: each publishes its pid, and the others watch it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from ithaka.comm_ext.ulysses.control_block import MAX_RANKS, NUM_RANKS_WORD, WORD_BYTES, control_bytes
from ithaka.comm_ext.ulysses.errors import UlyssesErrorCode, UlyssesInputError


@dataclass(frozen=True, slots=True)
class RankGroup:
    """One rank's seat in a group. The communicator that is built on it owns the descriptors from then on."""

    rank: int
    num_ranks: int
    arena_fd: int
    """A memfd: control words, then one window per rank. -1 in a group of one."""
    verdict_fd: int
    """An eventfd that holds a single token: whoever reads it may write the one fault record. -1 in a group of one."""

    def __post_init__(self) -> None:
        _check_num_ranks(self.num_ranks)
        if not 0 <= self.rank < self.num_ranks:
            raise UlyssesInputError(UlyssesErrorCode.BAD_ARGUMENT, f"rank must lie in 0..{self.num_ranks - 1}, got {self.rank}")
        if self.num_ranks > 1 and min(self.arena_fd, self.verdict_fd) < 0:
            raise UlyssesInputError(
                UlyssesErrorCode.BAD_ARGUMENT, f"a group of {self.num_ranks} needs the descriptors made by its parent"
            )

    @classmethod
    def from_fds(cls, *, rank: int, num_ranks: int, fds: Sequence[int]) -> RankGroup:
        """The seat of ``rank``, from descriptors inherited in the order of ``GroupDescriptors.fds``."""
        if len(fds) != 2:
            raise UlyssesInputError(UlyssesErrorCode.BAD_ARGUMENT, f"a group has 2 descriptors, got {len(fds)}")
        return cls(rank, num_ranks, fds[0], fds[1])

    @classmethod
    def alone(cls) -> RankGroup:
        """A group of one: it needs no descriptors, its exchanges pass tensors through."""
        return cls(0, 1, -1, -1)


@dataclass(frozen=True, slots=True)
class GroupDescriptors:
    """What a parent makes for a group of ranks; ``close`` it when the ranks are spawned."""

    num_ranks: int
    arena_fd: int
    verdict_fd: int

    @classmethod
    def create(cls, num_ranks: int) -> GroupDescriptors:
        """Make the descriptors, close-on-exec: pass them with ``pass_fds`` or SCM_RIGHTS. Raises UlyssesInputError, OSError."""
        _check_num_ranks(num_ranks)
        arena_fd = os.memfd_create("ithaka-ulysses", os.MFD_CLOEXEC)
        try:
            os.ftruncate(arena_fd, control_bytes(num_ranks))
            os.pwrite(arena_fd, num_ranks.to_bytes(WORD_BYTES, "little"), NUM_RANKS_WORD * WORD_BYTES)
            verdict_fd = os.eventfd(1, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        except OSError:
            os.close(arena_fd)
            raise
        return cls(num_ranks, arena_fd, verdict_fd)

    @property
    def fds(self) -> tuple[int, int]:
        """In the order that ``RankGroup.from_fds`` expects."""
        return (self.arena_fd, self.verdict_fd)

    def seat(self, rank: int) -> RankGroup:
        """A seat in this very process, on duplicated descriptors: ranks as threads (loopback), or a parent that takes part."""
        group = RankGroup(rank, self.num_ranks, self.arena_fd, self.verdict_fd)
        return RankGroup(group.rank, group.num_ranks, os.dup(self.arena_fd), os.dup(self.verdict_fd))

    def close(self) -> None:
        """Close the parent's copies. Call once."""
        os.close(self.arena_fd)
        os.close(self.verdict_fd)


def _check_num_ranks(num_ranks: int) -> None:
    if not 1 <= num_ranks <= MAX_RANKS:
        raise UlyssesInputError(UlyssesErrorCode.BAD_ARGUMENT, f"a group has 1 to {MAX_RANKS} ranks, got {num_ranks}")
