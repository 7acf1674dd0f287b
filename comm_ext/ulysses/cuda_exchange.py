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

from ithaka.comm_ext.ulysses.cuda_arena import MAX_REGIONS, WINDOW_OFFSET, WORDS_BYTES, Arena
from ithaka.comm_ext.ulysses.cuda_binding import Placement, Seat, bind
from ithaka.comm_ext.ulysses.cuda_calibration import Calibration, Launch
from ithaka.comm_ext.ulysses.cuda_library import MAX_TENSORS, REGION_BYTES, CudaLibrary, PlanStruct, TurnStruct
from ithaka.comm_ext.ulysses.errors import UlyssesErrorCode, UlyssesInputError
from ithaka.comm_ext.ulysses.fused_plan import MIRROR
from ithaka.comm_ext.ulysses.fused_site import FusedSite, fused_launch, readable
from ithaka.comm_ext.ulysses.fused_transform import QkTransform
from ithaka.comm_ext.ulysses.plan import Direction, ExchangePlan, signature
from ithaka.comm_ext.ulysses.rendezvous import Rendezvous

COPIED_SLOTS = 2
LEASED_SLOTS = 3
_UNIT_BYTES = 16


@dataclass(slots=True)
class Region:
    """Slots at the same offset of every window, and the words that order their uses."""

    index: int
    offset: int
    slot_bytes: int
    num_slots: int
    uses: int = 0
    turn: TurnStruct = field(default_factory=TurnStruct)
    """How certain the host is of the turn; kept by the engine."""


@dataclass(slots=True)
class Slot:
    """One slot of a site, as this rank sees it."""

    flat: torch.Tensor
    results: tuple[torch.Tensor, ...]
    storage: int
    idle_references: int = 0

    def count_references(self) -> int:
        """How many tensors and storages stand on the slot's bytes."""
        return int(torch._C._storage_Use_Count(self.storage))

    def is_lent(self) -> bool:
        """Whether a lent tensor, or anything that shares its memory, is alive."""
        return self.count_references() > self.idle_references


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
        seat: Seat,
        arena: Arena,
        *,
        max_bytes: int,
        backend: str,
        calibration: Calibration,
    ) -> None:
        self._library, self._rendezvous = library, rendezvous
        self._seat, self._arena, self._max_bytes = seat, arena, max_bytes
        self._backend, self._calibration = backend, calibration
        library.check_sizes("ul_fused_abi", MIRROR)
        self._lane = library.create_lane(seat.device)
        self._device = torch.device("cuda", seat.device)
        self._regions: list[Region] = []
        self._reserved_bytes = 0
        self._common: Region | None = None
        self._calls = self._num_sites = 0
        self._stream_of = torch._C._cuda_getCurrentRawStream

    def prepare(self, plans: tuple[ExchangePlan, ...], tag: str | None, *, fused: bool = False) -> CudaSite:
        """See Exchange. All ranks meet here once and compare the site; later calls carry its signature on the device."""
        if len(plans) > MAX_TENSORS:
            raise UlyssesInputError(UlyssesErrorCode.BAD_ARGUMENT, f"one call moves {MAX_TENSORS} tensors at most")
        launch = self.launch_of(plans)
        in_one = fused and self._backend != "copy_engine"
        if in_one:
            launch = fused_launch(plans, launch)
        slot_bytes = sum(plan.slot_bytes for plan in plans)
        region = self._reserve(slot_bytes, LEASED_SLOTS) if tag is not None else self._common_region(slot_bytes)
        facts = "; ".join(plan.facts() for plan in plans)
        agreed = signature(f"{facts} tag={tag} at={region.offset} {launch.facts()} fused={fused}")
        self._rendezvous.settle(self._rendezvous.post(agreed))
        self._num_sites += 1
        placement = Placement(
            WORDS_BYTES + region.index * REGION_BYTES,
            WINDOW_OFFSET + region.offset,
            region.slot_bytes,
            region.num_slots,
            agreed & 0xFFFFFFFF,
        )
        sources, targets = (ctypes.c_uint64 * MAX_TENSORS)(), (ctypes.c_uint64 * MAX_TENSORS)()
        with torch.inference_mode(False):
            slots = tuple(self._make_slot(plans, placement, index) for index in range(region.num_slots))
        for slot in slots:
            slot.idle_references = slot.count_references()
        return CudaSite(
            plans,
            tag,
            region,
            placement,
            launch,
            slots,
            sources,
            ctypes.addressof(sources),
            targets,
            ctypes.addressof(targets),
            ctypes.addressof(region.turn),
            FusedSite(plans) if in_one else None,
        )

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
            "max_bytes": self._max_bytes,
            "reserved_bytes": self._reserved_bytes,
            "sites": self._num_sites,
            "calls": self._calls,
            "calibration": self._calibration.measured_on,
        }

    def launch_of(self, plans: tuple[ExchangePlan, ...]) -> Launch:
        """How a call with these plans is made."""
        return self._calibration.launch_for(len(self._seat.arenas), _wire_bytes(plans), self._backend)

    def release(self) -> None:
        """Give the stream back and let the arena go; it is freed with the last lease."""
        if self._lane:
            self._library.destroy_lane(self._seat.device, self._lane)
            self._lane = 0

    def _begin(self, site: CudaSite, tensors: Sequence[torch.Tensor]) -> tuple[BoundLayout, Sequence[torch.Tensor]]:
        """What every call does first: the lease, the layout, the slot."""
        region = site.region
        if site.tag is not None and site.slots[(region.uses + 1) % LEASED_SLOTS].is_lent():
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
        if outs is None and site.tag is None:
            outs = [torch.empty(result.shape, dtype=result.dtype, device=self._device) for result in site.slots[0].results]
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

    def _common_region(self, slot_bytes: int) -> Region:
        if self._common is None or self._common.slot_bytes < slot_bytes:
            # Powers of two: all regions that were outgrown are together smaller than the newest.
            self._common = self._reserve(1 << (slot_bytes - 1).bit_length(), COPIED_SLOTS)
        return self._common

    def _reserve(self, slot_bytes: int, num_slots: int) -> Region:
        needed = slot_bytes * num_slots
        if self._reserved_bytes + needed > self._max_bytes:
            raise UlyssesInputError(
                UlyssesErrorCode.OVER_CAPACITY,
                f"this call needs {needed} bytes ({num_slots} slots of {slot_bytes}) and {self._reserved_bytes} of "
                f"max_bytes={self._max_bytes} are taken: raise max_bytes to {self._reserved_bytes + needed} at least",
            )
        if len(self._regions) == MAX_REGIONS:
            raise UlyssesInputError(
                UlyssesErrorCode.OVER_CAPACITY,
                f"{MAX_REGIONS} kinds of tagged calls are in use, no more fit: share tags between call sites",
            )
        region = Region(len(self._regions), self._reserved_bytes, slot_bytes, num_slots)
        self._regions.append(region)
        self._reserved_bytes += needed
        return region

    def _make_slot(self, plans: Sequence[ExchangePlan], placement: Placement, index: int) -> Slot:
        flat = self._flat(placement.window + index * placement.slot_bytes, placement.slot_bytes)
        results, offset = [], 0
        for plan in plans:
            results.append(_typed(flat, plan, offset))
            offset += plan.slot_bytes
        return Slot(flat, tuple(results), flat.untyped_storage()._cdata)

    def _flat(self, offset: int, num_bytes: int) -> torch.Tensor:
        """A tensor on bytes of the arena, which it keeps alive."""
        return torch.as_tensor(self._arena.lend(offset, num_bytes), device=self._device)

    def _results(self, sites: Sequence[CudaSite], outs: Sequence[torch.Tensor] | None) -> list[torch.Tensor]:
        """Copies in ``outs``, or of untagged sites; else leases."""
        if outs is not None:
            results = [result for site in sites for result in site.slots[site.current].results]
            return [out.copy_(result) for out, result in zip(outs, results, strict=True)]
        received: list[torch.Tensor] = []
        for site in sites:
            for result in site.slots[site.current].results:
                received.append(result.clone() if site.tag is None else result.detach())  # the cheapest view
        return received


def _typed(flat: torch.Tensor, plan: ExchangePlan, offset: int) -> torch.Tensor:
    num_bytes = torch.Size(plan.output_shape).numel() * plan.item_bytes
    return flat[offset : offset + num_bytes].view(getattr(torch, plan.dtype)).view(plan.output_shape)


def _wire_bytes(plans: Sequence[ExchangePlan]) -> int:
    """Bytes that the busiest rank sends to its peers: the same number on all ranks."""
    return max(sum(_sent_bytes(plan, rank) for plan in plans) for rank in range(len(plans[0].seq_splits)))


def _sent_bytes(plan: ExchangePlan, rank: int) -> int:
    own, others = (
        (plan.seq_splits, plan.head_splits) if plan.direction is Direction.SCATTER else (plan.head_splits, plan.seq_splits)
    )
    return plan.batch * own[rank] * (sum(others) - others[rank]) * plan.head_dim * plan.item_bytes
