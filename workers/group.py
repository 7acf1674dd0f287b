"""A rank's place in its group: the communicator, and the sockets by which the leader tells the others what it does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Self

from ithaka.comm_ext.ulysses.group import RankGroup
from ithaka.workers.child_socket import ChildSocket
from ithaka.workers.contract import CloseOnRank, ConfigureRank, OpenOnRank, RankOrder, StepPlan, StopRank
from ithaka.workers.wire import WireError

if TYPE_CHECKING:
    import torch

    from ithaka.comm_ext.ulysses.communicator import UlyssesCommunicator

LEADER = 0
_NUM_COMMUNICATOR_FDS = 2
_WINDOW_BYTES = 64 * 1024 * 1024
"""Of shared memory per rank; on a host only the pages that a model's exchanges touch exist."""


class GroupBrokenError(Exception):
    """Another rank of the group is gone; ``rank`` names it."""

    code = "rank_lost"

    def __init__(self, rank: int) -> None:
        super().__init__(f"rank {rank} is gone")
        self.rank = rank


class Group:
    """Built once per process from what ``ConfigureRank`` brought; owns all of it. A group of one has no parts."""

    def __init__(self, rank: int, communicator: UlyssesCommunicator | None, peers: Sequence[ChildSocket]) -> None:
        self.rank = rank
        self.communicator = communicator
        self._peers = tuple(peers)
        """On the leader one for each follower in rank order, on a follower the leader's."""

    @classmethod
    def join(cls, configure: ConfigureRank, fds: Sequence[int], device: torch.device | None = None) -> Self:
        """``device`` is where the communicator's tensors live; None is the CPU.

        Raises WireError when the descriptors are not those of ``configure``, UlyssesError when the ranks can't meet.
        """
        num_peers = configure.num_ranks - 1 if configure.rank == LEADER else 1
        if configure.num_ranks == 1:
            num_peers = 0
        num_shared = len(fds) - num_peers
        if num_shared != (_NUM_COMMUNICATOR_FDS if configure.num_ranks > 1 else 0):
            raise WireError(f"rank {configure.rank} of {configure.num_ranks} got {len(fds)} descriptors")
        peers = [ChildSocket.from_fd(fd) for fd in fds[num_shared:]]
        if configure.num_ranks == 1:
            return cls(configure.rank, None, peers)
        from ithaka.comm_ext.ulysses.communicator import UlyssesCommunicator

        communicator = UlyssesCommunicator(
            RankGroup.from_fds(rank=configure.rank, num_ranks=configure.num_ranks, fds=fds[:num_shared]),
            max_bytes=_WINDOW_BYTES,
            device=device,
            timeout_s=configure.communicator_timeout_s,
        )
        return cls(configure.rank, communicator, peers)

    def tell(self, order: RankOrder) -> None:
        """Leader only: the same order to every follower. Raises GroupBrokenError."""
        for follower, peer in enumerate(self._peers, start=1):
            try:
                peer.send(order)
            except ConnectionError as error:
                raise GroupBrokenError(follower) from error

    def next_order(self) -> RankOrder:
        """Follower only: waits for the leader's next order. Raises GroupBrokenError, WireError."""
        received = self._peers[0].receive()
        if received is None:
            raise GroupBrokenError(LEADER)
        order, _ = received
        if not isinstance(order, OpenOnRank | StepPlan | CloseOnRank | StopRank):
            raise WireError(f"the leader sent {type(order).__name__}, which is no order")
        return order

    def check(self) -> None:
        """At the end of a step: raises UlyssesError when the communicator is broken, so that nothing of it is published."""
        if self.communicator is not None:
            self.communicator.check()

    def close(self) -> None:
        """Together with the other ranks, after StopRank."""
        if self.communicator is not None:
            self.communicator.close()
        for peer in self._peers:
            peer.close()
