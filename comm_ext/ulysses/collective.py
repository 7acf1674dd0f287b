"""The exchange by an all-to-all of torch.distributed, for devices that can't write to each other.

Parts for the peers are packed, sent, and unpacked into fresh results; a tagged result is nobody's slot. Ranks meet on the host
before each transfer, for ``timeout_s`` at most, so a transfer starts only when all ranks make it, and then it ends as it
began: nothing changes its protocol midway. A peer that dies during one ends it (gloo) or has it aborted (NCCL); one that
stops during one is given up by torch.distributed's own watchdog, which ends the process.
"""

from __future__ import annotations

import math
import socket
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch

from ithaka.comm_ext.ulysses.cuda_rows import Landing
from ithaka.comm_ext.ulysses.errors import UlyssesError, UlyssesPeerError
from ithaka.comm_ext.ulysses.halves import InHalves
from ithaka.comm_ext.ulysses.plan import Direction, ExchangePlan, signature
from ithaka.comm_ext.ulysses.rendezvous import Rendezvous

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store
    from torch.distributed import ProcessGroup

_WATCH_PERIOD_S = 0.02


@dataclass(slots=True)
class CollectiveSite:
    """One kind of call on this rank."""

    plans: tuple[ExchangePlan, ...]
    signature: int
    sent: _Transfer | None = None


@dataclass(frozen=True, slots=True)
class _Transfer:
    """What is under way: the bytes from each rank, and who says that they came."""

    received: torch.Tensor
    packed: torch.Tensor = field(repr=False)
    work: Any = None


class CollectiveExchange(InHalves[CollectiveSite]):
    """See backend.Exchange."""

    def __init__(self, group: ProcessGroup, rendezvous: Rendezvous, device: torch.device, name: str) -> None:
        self._group, self._rendezvous, self._device, self._name = group, rendezvous, device, name
        self._num_sites = 0

    def prepare(
        self,
        plans: tuple[ExchangePlan, ...],
        tag: str | None,
        *,
        fused: bool = False,
        landings: tuple[Landing, ...] | None = None,
    ) -> CollectiveSite:
        """See Exchange. Nothing is reserved."""
        self._num_sites += 1
        facts = "; ".join(plan.facts() for plan in plans)
        return CollectiveSite(plans, signature(f"{facts} tag={tag} by {self._name}"))

    def allocate(self, num_bytes: int) -> torch.Tensor:
        """See Exchange: ordinary memory."""
        return torch.empty(num_bytes, dtype=torch.uint8, device=self._device)

    def landing_of(self, out: torch.Tensor) -> Landing | None:
        """See Exchange."""
        return None

    def send(self, site: CollectiveSite, tensors: Sequence[torch.Tensor]) -> None:
        """See Exchange. Returns when all ranks have come, and the transfer is on its way."""
        self._rendezvous.settle(self._rendezvous.post(site.signature))
        plans, ranks = site.plans, range(len(site.plans[0].seq_splits))
        parts = [_sent_part(plan, x, peer).reshape(-1) for peer in ranks for plan, x in zip(plans, tensors, strict=True)]
        packed = torch.cat([part.view(torch.uint8) for part in parts])
        in_bytes = [sum(_sent_bytes(plan, peer) for plan in plans) for peer in ranks]
        out_bytes = [sum(math.prod(_received_shape(plan, peer)) * plan.item_bytes for plan in plans) for peer in ranks]
        received = torch.empty(sum(out_bytes), dtype=torch.uint8, device=self._device)
        site.sent = _Transfer(received, packed, self._group.alltoall_base(received, packed, out_bytes, in_bytes))

    def receive(self, sites: Sequence[CollectiveSite], outs: Sequence[torch.Tensor] | None) -> list[torch.Tensor]:
        """See Exchange."""
        results: list[torch.Tensor] = []
        for site in sites:
            transfer, site.sent = site.sent, None
            assert transfer is not None
            try:
                transfer.work.wait()
            except RuntimeError as error:
                self._rendezvous.check()  # a peer that died is the better reason
                self._rendezvous.abort(f"a transfer failed: {error}")
                self._rendezvous.ensure_sound()
            results += self._unpacked(site.plans, transfer.received, outs)
        return results

    def describe(self) -> dict[str, Any]:
        """See Exchange."""
        counters = self._rendezvous.counters
        return {"sites": self._num_sites, "calls": counters.calls, "refusals": counters.refusals}

    def _unpacked(
        self, plans: Sequence[ExchangePlan], received: torch.Tensor, outs: Sequence[torch.Tensor] | None
    ) -> list[torch.Tensor]:
        results: list[torch.Tensor] = []
        by_plan: list[torch.Tensor] = []
        for plan in plans:
            if not plan.replicates:
                fresh = outs is None
                results.append(self._fresh(plan) if fresh else outs[len(results)])  # type: ignore[index]
            by_plan.append(results[-1])
        at = 0
        for source in range(len(plans[0].seq_splits)):
            for plan, result in zip(plans, by_plan, strict=True):
                shape = _received_shape(plan, source)
                num_bytes = math.prod(shape) * plan.item_bytes
                # A copy of its own where bytes before it leave it unaligned for its dtype.
                data = received[at : at + num_bytes]
                data = data if data.storage_offset() % plan.item_bytes == 0 else data.clone()
                _place_of(plan, result, source).copy_(data.view(result.dtype).view(shape))
                at += num_bytes
        return results

    def _fresh(self, plan: ExchangePlan) -> torch.Tensor:
        return torch.empty(plan.output_shape, dtype=getattr(torch, plan.dtype), device=self._device)


class CollectiveMember:
    """Membership over the rendezvous, and the process group's end (see backend.Membership)."""

    def __init__(self, rendezvous: Rendezvous, group: ProcessGroup, aborts: bool) -> None:
        self._rendezvous, self._group, self._aborts = rendezvous, group, aborts
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._left = False
        self._thread: threading.Thread | None = None
        if aborts:  # a kernel that waits for a dead peer ends only so
            self._thread = threading.Thread(target=self._watch, name="ulysses-watch", daemon=True)
            self._thread.start()

    def ensure_sound(self) -> None:
        """See Membership."""
        self._rendezvous.ensure_sound()

    def refuse(self, reason: str) -> None:
        """See Membership."""
        self._rendezvous.refuse(reason)

    def check(self) -> None:
        """See Membership."""
        with self._lock:
            self._rendezvous.check()

    def abort(self, reason: str) -> None:
        """See Membership."""
        self._rendezvous.abort(reason)

    def close(self) -> None:
        """See Membership."""
        if not self._left:
            self._leave()
            self._rendezvous.close()

    def release(self) -> None:
        """See Membership."""
        if not self._left:
            self._leave()
            self._rendezvous.release()

    def _leave(self) -> None:
        self._left = True
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._end()

    def _end(self) -> None:
        """Free the communicator's kernels and memory, finished or not."""
        with self._lock:
            if self._aborts:
                self._aborts = False
                self._group.abort()

    def _watch(self) -> None:
        while not self._stop.wait(_WATCH_PERIOD_S):
            try:
                self.check()
            except UlyssesPeerError:
                self._end()
                return
            except UlyssesError:
                return
            except Exception as error:  # a watch that ended unseen would leave the device without one
                self._rendezvous.abort(f"its watch failed: {type(error).__name__}: {error}")


def listen() -> socket.socket:
    """Where rank 0 lets the others find it, on loopback only."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    return listener


def open_store(port: int, listener: socket.socket | None, num_ranks: int, join_timeout_s: float) -> Store:
    """Where the ranks leave their addresses. Rank 0 passes the listener of ``port``, which is the store's from then on."""
    import torch.distributed as dist

    store: Store = dist.TCPStore(  # type: ignore[attr-defined]
        "127.0.0.1",
        port,
        num_ranks,
        is_master=listener is not None,
        timeout=timedelta(seconds=join_timeout_s),
        wait_for_workers=False,
        master_listen_fd=None if listener is None else listener.detach(),
    )
    return store


def open_process_group(store: Store, rank: int, num_ranks: int, device: torch.device, timeout_s: float) -> ProcessGroup:
    """A process group of its own, not torch's default one; NCCL between GPUs, gloo on a host. Raises RuntimeError."""
    import torch.distributed as dist

    group: Any
    if device.type == "cuda":
        nccl = dist.ProcessGroupNCCL.Options()
        nccl._timeout = timedelta(seconds=2 * timeout_s + 5)
        group = dist.ProcessGroupNCCL(store, rank, num_ranks, nccl)
    else:
        gloo: Any = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        gloo._devices = [dist.ProcessGroupGloo.create_device(interface="lo")]
        gloo._timeout = timedelta(seconds=timeout_s)
        group = dist.ProcessGroupGloo(store, rank, num_ranks, gloo)
    opened: ProcessGroup = group
    return opened


def try_out(group: ProcessGroup, num_ranks: int, device: torch.device) -> None:
    """One transfer, which makes the connections. Raises RuntimeError."""
    x = torch.zeros(num_ranks, dtype=torch.uint8, device=device)
    group.alltoall_base(torch.empty_like(x), x, [], []).wait()
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _sent_part(plan: ExchangePlan, x: torch.Tensor, peer: int) -> torch.Tensor:
    if plan.replicates:
        return x
    if plan.direction is Direction.SCATTER:
        return x.narrow(2, plan.head_starts[peer], plan.head_splits[peer])
    return x.narrow(1, sum(plan.seq_splits[:peer]), plan.seq_splits[peer])


def _sent_bytes(plan: ExchangePlan, peer: int) -> int:
    rows = plan.input_rows if plan.direction is Direction.SCATTER or plan.replicates else plan.seq_splits[peer]
    heads = plan.head_splits[peer] if plan.direction is Direction.SCATTER else plan.head_splits[plan.rank]
    return plan.batch * rows * heads * plan.head_dim * plan.item_bytes


def _received_shape(plan: ExchangePlan, source: int) -> tuple[int, int, int, int]:
    if plan.direction is Direction.SCATTER:
        return (plan.batch, plan.seq_splits[source], plan.head_splits[plan.rank], plan.head_dim)
    rows = plan.replicated if plan.replicates else plan.seq_splits[plan.rank]
    return (plan.batch, rows, plan.head_splits[source], plan.head_dim)


def _place_of(plan: ExchangePlan, result: torch.Tensor, source: int) -> torch.Tensor:
    if plan.direction is Direction.SCATTER:
        return result.narrow(1, sum(plan.seq_splits[:source]), plan.seq_splits[source])
    rows = (plan.seq_splits[plan.rank], plan.replicated) if plan.replicates else (0, plan.seq_splits[plan.rank])
    return result.narrow(1, *rows).narrow(2, plan.head_starts[source], plan.head_splits[source])
