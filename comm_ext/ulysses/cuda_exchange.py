"""The exchange between GPUs of one host: kernels and copies write straight into the peers' final layout.

A call site has slots in every window, used in turn: two if results are copied out, three if they are leased (see host.py for
why no opening handshake is needed then). Where the turn breaks, as when a graph is replayed, the device notices by its own
counts and takes an opening barrier. Everything is stream-ordered: calls of one site must be ordered among each other, a
result is ready for work that follows on the stream, and a lease is given back by the call that follows it on the stream.
Calls can be recorded in a CUDA graph; a new call site may appear in the recording too.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ithaka.comm_ext.ulysses.cuda_arena import WINDOW_OFFSET, WORDS_BYTES, Arena
from ithaka.comm_ext.ulysses.cuda_binding import Placement, Seat, bind
from ithaka.comm_ext.ulysses.cuda_calibration import Calibration, Launch
from ithaka.comm_ext.ulysses.cuda_library import MAX_TENSORS, REGION_BYTES, CudaLibrary, PlanStruct, TurnStruct
from ithaka.comm_ext.ulysses.cuda_meeting import CardTable
from ithaka.comm_ext.ulysses.cuda_rows import Landing
from ithaka.comm_ext.ulysses.cuda_window import LEASED_SLOTS, Region, Slot, Window
from ithaka.comm_ext.ulysses.errors import UlyssesErrorCode, UlyssesInputError
from ithaka.comm_ext.ulysses.fused_plan import MIRROR
from ithaka.comm_ext.ulysses.fused_site import FusedSite, fused_launch, readable
from ithaka.comm_ext.ulysses.fused_transform import QkTransform
from ithaka.comm_ext.ulysses.plan import ExchangePlan, signature
from ithaka.comm_ext.ulysses.rendezvous import Rendezvous

_UNIT_BYTES = 16


@dataclass(slots=True)
class BoundLayout:
    """The engine's plan for one layout of the inputs."""

    struct: PlanStruct
    address: int
    copies: bool


@dataclass(slots=True)
class CudaSite:
    """One kind of call on this rank."""

    plans: tuple[ExchangePlan, ...]
    tag: str | None
    region: Region
    placement: Placement
    launch: Launch
    slots: tuple[Slot, ...]
    sources: ctypes.Array[ctypes.c_uint64]
    sources_address: int
    targets: ctypes.Array[ctypes.c_uint64]
    targets_address: int
    turn_address: int
    fused: FusedSite | None
    layouts: dict[tuple[Any, ...], BoundLayout | None] = field(default_factory=dict)
    current: int = 0
    """The slot of its newest call."""
    sent: BoundLayout | None = None
    """How its newest call was made."""
    kept: Sequence[torch.Tensor] = ()
    """Inputs that the copy engine may still be reading."""


class CudaExchange:
    """Exchange over device memory (see backend.Exchange)."""

    def __init__(
        self,
        library: CudaLibrary,
        rendezvous: Rendezvous,
        cards: CardTable,
        seat: Seat,
        arena: Arena,
        *,
        max_bytes: int,
        backend: str,
        link: str,
        calibration: Calibration,
    ) -> None:
        self._library, self._rendezvous, self._cards, self._seat = library, rendezvous, cards, seat
        self._backend, self._link, self._calibration = backend, link, calibration
        library.check_sizes("ul_fused_abi", MIRROR)
        self._lane = library.create_lane(seat.device)
        self._window = Window(arena, torch.device("cuda", seat.device), max_bytes)
        self._calls = self._num_sites = 0
        self._stream_of = torch._C._cuda_getCurrentRawStream

    def prepare(
        self,
        plans: tuple[ExchangePlan, ...],
        tag: str | None,
        *,
        fused: bool = False,
        landings: tuple[Landing, ...] | None = None,
    ) -> CudaSite:
        """See Exchange. All ranks meet here once, their devices done with all calls before, and compare the site; later calls
        carry its signature on the device.
        """
        if len(plans) > MAX_TENSORS:
            raise UlyssesInputError(UlyssesErrorCode.BAD_ARGUMENT, f"one call moves {MAX_TENSORS} tensors at most")
        launch = self.launch_of(plans)
        in_one = fused and self._backend != "copy_engine" and not any(plan.is_banded for plan in plans)
        if in_one:
            launch = fused_launch(plans, launch)
        slot_bytes = sum(plan.slot_bytes for plan in plans)
        if landings is not None:
            region = self._window.landing_region()
        elif tag is not None:
            region = self._window.tagged_region(slot_bytes)
        else:
            region = self._window.common_region(slot_bytes)
        facts = "; ".join(plan.facts() for plan in plans)
        lands = landings is not None
        agreed = signature(f"{facts} tag={tag} at={region.offset} {launch.facts()} fused={fused} lands={lands}")
        number = self._rendezvous.post(agreed)
        # A rank that is late here may be waiting on its device for another one. Then this device waits for that one too, and
        # names it; only once all calls before are done does a late host speak for itself.
        self._library.finish(self._seat.device, self._stream_of(self._seat.device))
        self._rendezvous.settle(number)
        self._num_sites += 1
        placement = Placement(
            WORDS_BYTES + region.index * REGION_BYTES,
            0 if lands else WINDOW_OFFSET + region.offset,
            region.slot_bytes,
            region.num_slots,
            agreed & 0xFFFFFFFF,
            None if landings is None else self._landings_of_all(plans, landings),
        )
        sources, targets = (ctypes.c_uint64 * MAX_TENSORS)(), (ctypes.c_uint64 * MAX_TENSORS)()
        return CudaSite(
            plans,
            tag,
            region,
            placement,
            launch,
            () if lands else self._window.slots(plans, placement),
            sources,
            ctypes.addressof(sources),
            targets,
            ctypes.addressof(targets),
            ctypes.addressof(region.turn),
            FusedSite(plans) if in_one else None,
        )

    def allocate(self, num_bytes: int) -> torch.Tensor:
        """See Exchange: bytes of the window."""
        return self._window.allocate(num_bytes)

    def landing_of(self, out: torch.Tensor) -> Landing | None:
        """See Exchange."""
        return self._window.landing_of(out)

    def exchange(
        self, site: CudaSite, tensors: Sequence[torch.Tensor], outs: Sequence[torch.Tensor] | None
    ) -> Sequence[torch.Tensor]:
        """``send`` and ``receive`` of one site in one: a single kernel where the kernel does it all."""
        layout, tensors = self._begin(site, tensors)
        outs, targets = self._targets(site, outs)
        status = self._library.exchange(
            layout.address,
            self._lane,
            site.turn_address,
            site.current,
            site.sources_address,
            targets,
            self._stream_of(self._seat.device),
        )
        if status:
            self._library.check(status)
        return outs if outs is not None and targets is not None else self._results((site,), outs)

    def exchange_fused(
        self, site: CudaSite, tensors: Sequence[torch.Tensor], transform: QkTransform, outs: Sequence[torch.Tensor] | None
    ) -> Sequence[torch.Tensor]:
        """See Exchange: the send kernel norms and turns what it reads. The copy engine can't; it gets the results."""
        if site.fused is None:
            return self.exchange(site, (*transform.apply(*tensors[:2]), *tensors[2:]), outs)
        layout, tensors = self._begin(site, readable(tensors))
        outs, targets = self._targets(site, outs)
        plan, sources, transform = site.fused.bind(tensors, transform)
        stream = self._stream_of(self._seat.device)
        status = self._library.fused_exchange(layout.address, plan, site.current, sources, targets, stream)
        if status:
            self._library.check(status)
        return outs if outs is not None and targets is not None else self._results((site,), outs)

    def send(self, site: CudaSite, tensors: Sequence[torch.Tensor]) -> None:
        """See Exchange. With the copy engine the inputs must not change before the wait; they are kept alive until then."""
        layout, tensors = self._begin(site, tensors)
        stream = self._stream_of(self._seat.device)
        status = self._library.send(layout.address, self._lane, site.turn_address, site.current, site.sources_address, stream)
        if status:
            self._library.check(status)
        site.sent = layout
        site.kept = tuple(tensors) if layout.copies else ()

    def receive(self, sites: Sequence[CudaSite], outs: Sequence[torch.Tensor] | None) -> Sequence[torch.Tensor]:
        """See Exchange: one kernel waits for all sites."""
        count = len(sites)
        plans, lanes = (ctypes.c_void_p * count)(), (ctypes.c_void_p * count)()
        for index, site in enumerate(sites):
            assert site.sent is not None
            plans[index], lanes[index] = site.sent.address, self._lane
        self._library.check(self._library.wait(plans, lanes, count, self._stream_of(self._seat.device)))
        for site in sites:
            site.kept = ()
        return self._results(sites, outs)

    def describe(self) -> dict[str, Any]:
        """See Exchange."""
        return {
            "device": self._seat.device,
            "link": self._link,
            "max_bytes": self._window.max_bytes,
            "reserved_bytes": self._window.reserved_bytes,
            "allocated_bytes": self._window.allocated_bytes,
            "sites": self._num_sites,
            "calls": self._calls,
            "calibration": self._calibration.measured_on,
        }

    def launch_of(self, plans: tuple[ExchangePlan, ...]) -> Launch:
        """How a call with these plans is made."""
        return self._calibration.launch_for(len(self._seat.arenas), _wire_bytes(plans), _row_bytes(plans), self._backend)

    def release(self) -> None:
        """Give the stream back and let the arena go; it is freed with the last lease."""
        if self._lane:
            self._library.destroy_lane(self._seat.device, self._lane)
            self._cards.close()
            self._lane = 0

    def _begin(self, site: CudaSite, tensors: Sequence[torch.Tensor]) -> tuple[BoundLayout, Sequence[torch.Tensor]]:
        """What every call does first: the lease, the layout, the slot."""
        region = site.region
        if site.placement.landings is not None:
            ctypes.memset(site.turn_address, 0, ctypes.sizeof(TurnStruct))  # no turn: copies always take the opening barrier
        elif site.tag is not None and site.slots[(region.uses + 1) % LEASED_SLOTS].is_lent():
            raise UlyssesInputError(
                UlyssesErrorCode.LEASE_OVERRUN,
                f"the result of the call before last with tag {site.tag!r} is still held: drop it (or clone it) before "
                "the second next call, or give call sites their own tags",
            )
        layout = self._layout(site, tensors)
        if layout is None:
            tensors = [tensor.contiguous() for tensor in tensors]
            layout = self._layout(site, tensors)
            assert layout is not None
        site.current = region.uses % region.num_slots
        region.uses += 1
        self._calls += 1
        return layout, tensors

    def _targets(self, site: CudaSite, outs: Sequence[torch.Tensor] | None) -> tuple[Sequence[torch.Tensor] | None, int | None]:
        """Where results are wanted, fresh tensors for untagged calls; and the address of that list if a kernel can fill it."""
        if site.placement.landings is not None:
            return outs, None
        if outs is None and site.tag is None:
            outs = [
                torch.empty(result.shape, dtype=result.dtype, device=self._window.device) for result in site.slots[0].results
            ]
        if outs is None or not all(out.is_contiguous() and out.data_ptr() % _UNIT_BYTES == 0 for out in outs):
            return outs, None
        for index, out in enumerate(outs):
            site.targets[index] = out.data_ptr()
        return outs, site.targets_address

    def _layout(self, site: CudaSite, tensors: Sequence[torch.Tensor]) -> BoundLayout | None:
        """How to read these inputs, whose addresses are left in ``sources``; None: not at all, as they are."""
        addresses = 0
        for index, tensor in enumerate(tensors):
            site.sources[index] = address = tensor.data_ptr()
            addresses |= address
        key = (addresses & (_UNIT_BYTES - 1), *[tensor.stride() for tensor in tensors])
        known = site.layouts.get(key)
        if known is not None or key in site.layouts:
            return known
        alignment = (addresses | _UNIT_BYTES) & -(addresses | _UNIT_BYTES)
        struct = bind(site.plans, [tensor.stride() for tensor in tensors], alignment, self._seat, site.placement, site.launch)
        layout = None if struct is None else BoundLayout(struct, ctypes.addressof(struct), struct.copies > 0)
        site.layouts[key] = layout
        return layout

    def _landings_of_all(self, plans: Sequence[ExchangePlan], own: Sequence[Landing]) -> tuple[tuple[Landing, ...], ...]:
        """By plan and rank: each rank tells the others where its results are wanted."""
        card = {"landings": [[landing.offset, *landing.strides] for landing in own]}
        met = [
            [Landing(offset, (batch, token, head)) for offset, batch, token, head in theirs["landings"]]
            for theirs in self._cards.share(self._rendezvous, card)
        ]
        by_plan: list[tuple[Landing, ...]] = []
        number = -1
        for plan in plans:
            number += not plan.replicates  # replicated rows land where the rows before them do
            by_plan.append(tuple(landings[number] for landings in met))
        return tuple(by_plan)

    def _results(self, sites: Sequence[CudaSite], outs: Sequence[torch.Tensor] | None) -> list[torch.Tensor]:
        """What landed in ``outs``; copies in ``outs``, or of untagged sites; else leases."""
        if outs is not None and sites[0].placement.landings is not None:
            return list(outs)
        if outs is not None:
            results = [result for site in sites for result in site.slots[site.current].results]
            return [out.copy_(result) for out, result in zip(outs, results, strict=True)]
        received: list[torch.Tensor] = []
        for site in sites:
            slot = site.slots[site.current]
            received += [result.clone() for result in slot.results] if site.tag is None else slot.lend()
        return received


def _wire_bytes(plans: Sequence[ExchangePlan]) -> int:
    """Bytes that the busiest rank sends to its peers: the same number on all ranks."""
    return max(sum(plan.sent_bytes(rank) for plan in plans) for rank in range(len(plans[0].seq_splits)))


def _row_bytes(plans: Sequence[ExchangePlan]) -> int:
    """The shortest row of any rank, where heads of others lie beside it: the same number on all ranks."""
    return min(min(plan.head_splits) * plan.head_dim * plan.item_bytes for plan in plans)
