"""The exchange between CPU processes: windows in one memfd, each rank writes straight into its peers' final layout.

Why no opening handshake is needed: a call site has several slots, used in turn. A peer writes the slot of use ``u`` again
at use ``u + num_slots``, which it begins only after it has seen this rank's arrival at use ``u + num_slots - 1``. So a result
must be out of use when its rank begins that call. Results of untagged calls are copied out before the call returns (two
slots). Results of tagged calls are leases: views of the window, which may be used until the second next call of the same
site begins (three slots). A lease that is still held then is an error, never a race: the view's memory tells.
"""

from __future__ import annotations

import math
import mmap
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ithaka.comm_ext.ulysses.control_block import PAGE_BYTES, control_bytes
from ithaka.comm_ext.ulysses.cuda_rows import Landing
from ithaka.comm_ext.ulysses.errors import UlyssesErrorCode, UlyssesInputError
from ithaka.comm_ext.ulysses.group import RankGroup
from ithaka.comm_ext.ulysses.halves import InHalves
from ithaka.comm_ext.ulysses.plan import ExchangePlan, Move, signature, slot_offsets
from ithaka.comm_ext.ulysses.rendezvous import Rendezvous

COPIED_SLOTS = 2
LEASED_SLOTS = 3


@dataclass(slots=True)
class Region:
    """Slots at the same offset of every window."""

    offset: int
    slot_bytes: int
    num_slots: int
    uses: int = 0


@dataclass(frozen=True, slots=True)
class Copy:
    """A move bound to memory: where the bytes go, and which part of the source they are."""

    target: torch.Tensor
    shape: tuple[int, ...]
    axis: int | None
    start: int
    length: int

    def run(self, source: torch.Tensor) -> None:
        """Copy the source's part to its place."""
        if self.axis is None:
            self.target.copy_(source.view(self.shape))
        else:
            self.target.copy_(source.narrow(self.axis, self.start, self.length))


@dataclass(frozen=True, slots=True)
class Part:
    """One tensor's place in a slot."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    count: int
    offset: int
    """Bytes from the slot's start."""


@dataclass(slots=True)
class Slot:
    """One slot of a site, as this rank sees it."""

    copies: tuple[tuple[Copy, ...], ...]
    """Per tensor: writes into the windows."""
    results: tuple[torch.Tensor, ...]
    """Per tensor: what the peers wrote for this rank."""
    parts: tuple[Part, ...]
    lease: memoryview
    """The slot's bytes; every tensor lent from it holds a reference."""
    references_before: int | None = None
    """How many held them when the slot was lent last; None: it never was."""

    @property
    def stack(self) -> Part | None:
        """The parts as one tensor, if they are alike and leave no gap."""
        first, *rest = self.parts
        part_bytes = first.count * first.dtype.itemsize
        offsets = range(0, part_bytes * len(self.parts), part_bytes)
        if not rest or [part.offset for part in self.parts] != list(offsets):
            return None
        if any((part.dtype, part.shape) != (first.dtype, first.shape) for part in rest):
            return None
        return Part(first.dtype, (len(self.parts), *first.shape), first.count * len(self.parts), 0)

    def lend(self, stack: Part | None) -> Sequence[torch.Tensor]:
        """Fresh tensors on the slot's bytes. Their storage is their own, so whatever is derived from them counts."""
        self.references_before = sys.getrefcount(self.lease)
        if stack is not None:
            return torch.frombuffer(self.lease, dtype=stack.dtype, count=stack.count).view(stack.shape).unbind()
        return [
            torch.frombuffer(self.lease, dtype=part.dtype, count=part.count, offset=part.offset).view(part.shape)
            for part in self.parts
        ]

    def is_lent(self) -> bool:
        """Whether a lent tensor, or anything that shares its memory, is alive."""
        return self.references_before is not None and sys.getrefcount(self.lease) > self.references_before


@dataclass(slots=True)
class HostSite:
    """One kind of call on this rank."""

    plans: tuple[ExchangePlan, ...]
    tag: str | None
    region: Region
    signature: int
    slots: tuple[Slot, ...]
    stack: Part | None
    """All results of a slot as one tensor, where that is possible: fewer tensors to make in each call."""
    number: int = 0
    """Number of its newest call."""
    current: int = 0
    """The slot of its newest call."""


class HostExchange(InHalves[HostSite]):
    """Exchange over host memory (see backend.Exchange)."""

    def __init__(self, group: RankGroup, rendezvous: Rendezvous, *, max_bytes: int) -> None:
        """Map the windows: ``max_bytes`` per rank, equal on all ranks (the join has compared it)."""
        self._rendezvous = rendezvous
        self._rank = group.rank
        self._max_bytes = max_bytes
        self._window_bytes = -(-max_bytes // PAGE_BYTES) * PAGE_BYTES
        self._first_window = control_bytes(group.num_ranks)
        arena_bytes = self._first_window + self._window_bytes * group.num_ranks
        os.ftruncate(group.arena_fd, arena_bytes)  # every rank asks for the same size; pages come when touched
        self._memory = memoryview(mmap.mmap(group.arena_fd, arena_bytes))
        self._reserved_bytes = 0
        self._common: Region | None = None
        self._num_sites = 0

    def prepare(
        self,
        plans: tuple[ExchangePlan, ...],
        tag: str | None,
        *,
        fused: bool = False,
        landings: tuple[Landing, ...] | None = None,
    ) -> HostSite:
        """See Exchange. Untagged sites share one region, so endless new shapes do not eat the window."""
        slot_bytes = sum(plan.slot_bytes for plan in plans)
        region = self._reserve(slot_bytes, LEASED_SLOTS) if tag is not None else self._common_region(slot_bytes)
        facts = "; ".join(plan.facts() for plan in plans)
        self._num_sites += 1
        with torch.inference_mode(False):  # views made inside inference mode could not be written outside of it
            slots = tuple(self._bind(plans, region, index) for index in range(region.num_slots))
        return HostSite(plans, tag, region, signature(f"{facts} tag={tag} at={region.offset}"), slots, slots[0].stack)

    def allocate(self, num_bytes: int) -> torch.Tensor:
        """See Exchange: ordinary memory."""
        return torch.empty(num_bytes, dtype=torch.uint8)

    def landing_of(self, out: torch.Tensor) -> Landing | None:
        """See Exchange."""
        return None

    def send(self, site: HostSite, tensors: Sequence[torch.Tensor]) -> None:
        """See Exchange. Returns when the bytes are in place, so the source may change at once."""
        region = site.region
        if site.tag is not None and site.slots[(region.uses + 1) % LEASED_SLOTS].is_lent():
            raise UlyssesInputError(
                UlyssesErrorCode.LEASE_OVERRUN,
                f"the result of the call before last with tag {site.tag!r} is still held: drop it (or clone it) before "
                "the second next call, or give call sites their own tags",
            )
        site.current = region.uses % region.num_slots
        region.uses += 1
        for copies, tensor in zip(site.slots[site.current].copies, tensors, strict=True):
            for copy in copies:
                copy.run(tensor)
        site.number = self._rendezvous.post(site.signature)

    def receive(self, sites: Sequence[HostSite], outs: Sequence[torch.Tensor] | None) -> list[torch.Tensor]:
        """See Exchange."""
        self._rendezvous.settle(max(site.number for site in sites))
        if outs is not None:
            results = [result for site in sites for result in site.slots[site.current].results]
            return [out.copy_(result) for out, result in zip(outs, results, strict=True)]
        received: list[torch.Tensor] = []
        for site in sites:
            slot = site.slots[site.current]
            if site.tag is None:
                received.extend(result.clone() for result in slot.results)
            else:
                received.extend(slot.lend(site.stack))
        return received

    def describe(self) -> dict[str, Any]:
        """See Exchange."""
        counters = self._rendezvous.counters
        return {
            "max_bytes": self._max_bytes,
            "reserved_bytes": self._reserved_bytes,
            "sites": self._num_sites,
            "calls": counters.calls,
            "refusals": counters.refusals,
            "slept_waits": counters.slept,
        }

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
        region = Region(self._reserved_bytes, slot_bytes, num_slots)
        self._reserved_bytes += needed
        return region

    def _bind(self, plans: tuple[ExchangePlan, ...], region: Region, index: int) -> Slot:
        slot_start = region.offset + index * region.slot_bytes
        own_start = self._first_window + self._rank * self._window_bytes + slot_start
        lease = self._memory[own_start : own_start + region.slot_bytes]
        copies, parts = [], []
        for plan, offset in zip(plans, slot_offsets(plans), strict=True):
            dtype, shape = getattr(torch, plan.dtype), plan.output_shape
            base = self._first_window + slot_start + offset
            copies.append(tuple(self._copy(move, dtype, base) for move in plan.moves(self._window_bytes)))
            if not plan.replicates:
                parts.append(Part(dtype, shape, math.prod(shape), offset))
        # The results of this rank's own copies out must not look like leases: they stand on the whole memory.
        results = tuple(
            torch.frombuffer(self._memory, dtype=part.dtype, count=part.count, offset=own_start + part.offset).view(part.shape)
            for part in parts
        )
        return Slot(tuple(copies), results, tuple(parts), lease)

    def _copy(self, move: Move, dtype: torch.dtype, base: int) -> Copy:
        arena = torch.frombuffer(self._memory, dtype=dtype, offset=base, count=(len(self._memory) - base) // dtype.itemsize)
        target = arena.as_strided(move.shape, move.strides, move.offset)
        return Copy(target, move.shape, move.axis, move.start, move.length)
