"""From plans to the structure that a call hands to the engine: pieces for the kernel, pitched copies for the copy engine."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ithaka.comm_ext.ulysses.cuda_calibration import Launch
from ithaka.comm_ext.ulysses.cuda_library import MAX_COPIES, CopyStruct, PieceStruct, PlanStruct
from ithaka.comm_ext.ulysses.cuda_rows import Landing, Rows, landing_in_slot, magic_of, rotation, rows_of
from ithaka.comm_ext.ulysses.plan import ExchangePlan, slot_offsets

_MAX_UNITS = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Seat:
    """Where this rank's calls find everything: addresses as mapped in this process."""

    device: int
    rank: int
    arenas: tuple[int, ...]
    host_words: int
    timeout_ns: int


@dataclass(frozen=True, slots=True)
class Placement:
    """A call site's place in every arena, and what its arrival words say."""

    region: int
    """Bytes from an arena's start to the region's words."""
    window: int
    """Bytes from an arena's start to slot 0."""
    slot_bytes: int
    num_slots: int
    signature: int
    landings: tuple[tuple[Landing, ...], ...] | None = None
    """By tensor and rank, where results go to memory of the arena that a caller holds instead of to a slot."""

    @property
    def expiry(self) -> int:
        """So many uses after its own, a result is out of use: slots in their turn, or at any time before the next use."""
        return self.num_slots - 1 if self.landings is None else 1


def bind(
    plans: Sequence[ExchangePlan],
    strides: Sequence[Sequence[int]],
    address_alignment: int,
    seat: Seat,
    placement: Placement,
    launch: Launch,
) -> PlanStruct | None:
    """The engine's plan for inputs of these element strides; None if such inputs have to be made contiguous first."""
    kernel_rows, copy_rows = _rows(plans, strides, seat.rank, placement, launch)
    if kernel_rows is None or copy_rows is None:
        return None
    struct = PlanStruct()
    unit_bytes = math.gcd(address_alignment, placement.window, *(rows.alignment() for rows in kernel_rows))
    if any(rows.total_bytes // unit_bytes > _MAX_UNITS for rows in kernel_rows):
        return None
    for piece, rows in zip(struct.piece, kernel_rows, strict=False):
        _fill_piece(piece, rows, unit_bytes)
    num_copies = 0
    for rows in copy_rows:
        needed = rows.copies()
        if needed is None or num_copies + needed > MAX_COPIES:
            return None
        for group in range(needed):
            _fill_copy(struct.copy[num_copies], rows, group)
            num_copies += 1
    call = struct.call
    for rank, address in enumerate(seat.arenas):
        call.arena[rank] = address
    call.region, call.timeout_ns, call.host_words = placement.region, seat.timeout_ns, seat.host_words
    call.rank, call.ranks, call.tensors, call.signature = seat.rank, len(seat.arenas), len(plans), placement.signature
    call.remote_blocks, call.local_blocks = launch.remote_blocks, launch.local_blocks
    call.expiry = placement.expiry
    call.copies = launch.copied > 0
    for index, (plan, offset) in enumerate(zip(plans, slot_offsets(plans), strict=True)):
        struct.result_offset[index], struct.result_bytes[index] = offset, _result_bytes(plan)
    struct.window, struct.slot_bytes = placement.window, placement.slot_bytes
    struct.copies, struct.unit_bytes, struct.device = num_copies, unit_bytes, seat.device
    return struct


def _result_bytes(plan: ExchangePlan) -> int:
    return 0 if plan.replicates else math.prod(plan.output_shape) * plan.item_bytes


def _rows(
    plans: Sequence[ExchangePlan], strides: Sequence[Sequence[int]], rank: int, placement: Placement, launch: Launch
) -> tuple[list[Rows] | None, list[Rows] | None]:
    """For the kernel, in the order of its pieces, and for the copy engine, in rotation order too."""
    offsets, landings = slot_offsets(plans), placement.landings
    kernel: list[Rows] = []
    copied: list[Rows] = []
    for peer in rotation(rank, len(plans[0].seq_splits)):
        for tensor, (plan, offset) in enumerate(zip(plans, offsets, strict=True)):
            border = 1.0 if peer == rank else 1.0 - launch.copied
            landing = landing_in_slot(plan, peer, offset) if landings is None else landings[tensor][peer]
            near = rows_of(plan, tensor, landing, strides[tensor], peer, 0.0, border)
            far = rows_of(plan, tensor, landing, strides[tensor], peer, border, 1.0)
            if near is None or far is None:
                return None, None
            kernel.append(near)
            if far.total_bytes:
                copied.append(far)
    return kernel, copied


def _fill_piece(piece: PieceStruct, rows: Rows, unit_bytes: int) -> None:
    piece.source, piece.target, piece.tensor = rows.source, rows.target, rows.tensor
    piece.source_outer, piece.target_outer = rows.outer.source_stride, rows.outer.target_stride
    piece.source_inner, piece.target_inner = rows.inner.source_stride, rows.inner.target_stride
    piece.row_units = max(rows.row_bytes // unit_bytes, 1)
    piece.units = rows.total_bytes // unit_bytes
    piece.row_magic, piece.row_shift = magic_of(piece.row_units)
    piece.inner_rows = max(rows.inner.count, 1)
    piece.inner_magic, piece.inner_shift = magic_of(piece.inner_rows)


def _fill_copy(copy: CopyStruct, rows: Rows, group: int) -> None:
    copy.source = rows.source + group * rows.outer.source_stride
    copy.target = rows.target + group * rows.outer.target_stride
    copy.source_pitch, copy.target_pitch = rows.inner.source_stride, rows.inner.target_stride
    copy.width, copy.height = rows.row_bytes, rows.inner.count
    copy.tensor, copy.peer = rows.tensor, rows.peer
