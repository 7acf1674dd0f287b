"""The window of one rank's arena: slots of call sites from its start, memory that callers hold from its end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from ithaka.comm_ext.ulysses.cuda_arena import MAX_REGIONS, WINDOW_OFFSET, Arena
from ithaka.comm_ext.ulysses.cuda_binding import Placement
from ithaka.comm_ext.ulysses.cuda_library import TurnStruct
from ithaka.comm_ext.ulysses.cuda_rows import Landing
from ithaka.comm_ext.ulysses.errors import UlyssesErrorCode, UlyssesInputError
from ithaka.comm_ext.ulysses.plan import ExchangePlan, slot_offsets

COPIED_SLOTS = 2
LEASED_SLOTS = 3
_ALLOCATION_BYTES = 512


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
    references_before: int | None = None
    """How many tensors and storages stood on the slot's bytes when it was lent last; None: it never was."""

    def lend(self) -> list[torch.Tensor]:
        """Fresh tensors on the slot's bytes. Whatever stands there already, torch's own wrappers included, is no lease."""
        self.references_before = self._count_references()
        return [result.detach() for result in self.results]  # the cheapest view

    def is_lent(self) -> bool:
        """Whether a lent tensor, or anything that shares its memory, is alive."""
        return self.references_before is not None and self._count_references() > self.references_before

    def _count_references(self) -> int:
        return int(torch._C._storage_Use_Count(self.storage))


class Window:
    """Who has which bytes."""

    def __init__(self, arena: Arena, device: torch.device, max_bytes: int) -> None:
        self.device, self.max_bytes = device, max_bytes
        self.reserved_bytes = 0
        self.allocated_bytes = 0
        self._arena = arena
        self._regions: list[Region] = []
        self._common: Region | None = None
        self._landing: Region | None = None

    def tagged_region(self, slot_bytes: int) -> Region:
        """Slots of its own for a tagged kind of call. Raises UlyssesInputError (OVER_CAPACITY), as the others do."""
        return self._reserve(slot_bytes, LEASED_SLOTS)

    def common_region(self, slot_bytes: int) -> Region:
        """The slots that all untagged calls share."""
        if self._common is None or self._common.slot_bytes < slot_bytes:
            # Powers of two: all regions that were outgrown are together smaller than the newest.
            self._common = self._reserve(1 << (slot_bytes - 1).bit_length(), COPIED_SLOTS)
        return self._common

    def landing_region(self) -> Region:
        """The words of all calls into memory that callers hold; no slots."""
        if self._landing is None:
            self._landing = self._reserve(0, 1)
        return self._landing

    def allocate(self, num_bytes: int) -> torch.Tensor:
        """Bytes for a caller, until the end. Raises UlyssesInputError (OVER_CAPACITY)."""
        start = (self.max_bytes - self.allocated_bytes - num_bytes) // _ALLOCATION_BYTES * _ALLOCATION_BYTES
        if start < self.reserved_bytes:
            raise UlyssesInputError(
                UlyssesErrorCode.OVER_CAPACITY,
                f"{num_bytes} bytes are wanted, and {self.reserved_bytes + self.allocated_bytes} of max_bytes="
                f"{self.max_bytes} are taken: raise max_bytes by {self.reserved_bytes - start} at least",
            )
        self.allocated_bytes = self.max_bytes - start
        with torch.inference_mode(False):
            return self.flat(WINDOW_OFFSET + start, num_bytes)

    def landing_of(self, out: torch.Tensor) -> Landing | None:
        """Where ``out`` lies, if it was made of ``allocate``'s bytes and rows of at most two levels describe it."""
        offset = out.data_ptr() - self._arena.address
        end = WINDOW_OFFSET + self.max_bytes
        if not end - self.allocated_bytes <= offset < end or out.dim() != 4:
            return None
        batch, token, head, item = out.stride()
        if item != 1 and out.shape[3] > 1:
            return None
        if out.shape[0] > 1 and head != out.shape[3]:
            return None
        size = out.element_size()
        return Landing(offset, (batch * size, token * size, head * size))

    def flat(self, offset: int, num_bytes: int) -> torch.Tensor:
        """A tensor on bytes of the arena, which it keeps alive."""
        return torch.as_tensor(self._arena.lend(offset, num_bytes), device=self.device)

    def slots(self, plans: Sequence[ExchangePlan], placement: Placement) -> tuple[Slot, ...]:
        """A site's slots."""
        with torch.inference_mode(False):  # views made inside inference mode could not be written outside of it
            return tuple(self._slot(plans, placement, index) for index in range(placement.num_slots))

    def _slot(self, plans: Sequence[ExchangePlan], placement: Placement, index: int) -> Slot:
        flat = self.flat(placement.window + index * placement.slot_bytes, placement.slot_bytes)
        results = tuple(
            _typed(flat, plan, offset) for plan, offset in zip(plans, slot_offsets(plans), strict=True) if not plan.replicates
        )
        return Slot(flat, results, flat.untyped_storage()._cdata)

    def _reserve(self, slot_bytes: int, num_slots: int) -> Region:
        needed = slot_bytes * num_slots
        taken = self.reserved_bytes + self.allocated_bytes
        if taken + needed > self.max_bytes:
            raise UlyssesInputError(
                UlyssesErrorCode.OVER_CAPACITY,
                f"this call needs {needed} bytes ({num_slots} slots of {slot_bytes}) and {taken} of "
                f"max_bytes={self.max_bytes} are taken: raise max_bytes to {taken + needed} at least",
            )
        if len(self._regions) == MAX_REGIONS:
            raise UlyssesInputError(
                UlyssesErrorCode.OVER_CAPACITY,
                f"{MAX_REGIONS} kinds of tagged calls are in use, no more fit: share tags between call sites",
            )
        region = Region(len(self._regions), self.reserved_bytes, slot_bytes, num_slots)
        self._regions.append(region)
        self.reserved_bytes += needed
        return region


def _typed(flat: torch.Tensor, plan: ExchangePlan, offset: int) -> torch.Tensor:
    num_bytes = torch.Size(plan.output_shape).numel() * plan.item_bytes
    return flat[offset : offset + num_bytes].view(getattr(torch, plan.dtype)).view(plan.output_shape)
