"""The fused call's structures, as the engine takes them (csrc/fused_abi.h), and how they are filled. No torch."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import c_float, c_int64, c_uint32, c_uint64

from ithaka.comm_ext.ulysses.cuda_calibration import MAX_REMOTE_BLOCKS, Launch
from ithaka.comm_ext.ulysses.cuda_library import MAX_RANKS
from ithaka.comm_ext.ulysses.plan import ExchangePlan

UNIT_BYTES = 16
HEAD_DIMS = (64, 128)
NUMBERS = {"bfloat16": 0, "float16": 1, "float32": 2}
NORMS = {None: 0, "head": 1, "row": 2}
TURNS = {None: 0, "interleaved": 1, "halves": 2}
WARPS_OF_A_BLOCK = 16


class FusedTensorStruct(ctypes.Structure):
    """UlFusedTensor."""

    _fields_ = (
        ("source_batch", c_int64),
        ("source_token", c_int64),
        ("source_head", c_int64),
        ("target", c_uint64 * MAX_RANKS),
        ("target_row", c_uint32 * MAX_RANKS),
        ("first_unit", c_uint32 * MAX_RANKS),
        ("units", c_uint32),
        ("pad", c_uint32),
    )


class FusedPlanStruct(ctypes.Structure):
    """UlFusedPlan."""

    _fields_ = (
        ("tensor", FusedTensorStruct * 2),
        ("phase_batch", c_int64),
        ("phase_token", c_int64),
        ("batch", c_uint32),
        ("tokens", c_uint32),
        ("target_tokens", c_uint32),
        ("head_units_log2", c_uint32),
        ("number", c_uint32),
        ("norm", c_uint32),
        ("turn", c_uint32),
        ("eps", c_float),
    )


class FusedSourcesStruct(ctypes.Structure):
    """UlFusedSources."""

    _fields_ = (("tensor", c_uint64 * 3), ("weight", c_uint64 * 2), ("phases", c_uint64))


MIRROR = tuple(ctypes.sizeof(kind) for kind in (FusedTensorStruct, FusedPlanStruct, FusedSourcesStruct))


def refusal(plans: Sequence[ExchangePlan]) -> str | None:
    """Why the kernel can't serve these queries, keys and values; None if it can."""
    q, k, v = plans
    if q.head_dim not in HEAD_DIMS:
        return f"the fused kernel serves head dims {' and '.join(map(str, HEAD_DIMS))}, not {q.head_dim}"
    if any(plan.dtype not in NUMBERS or plan.dtype != q.dtype or plan.head_dim != q.head_dim for plan in (q, k, v)):
        return f"the fused kernel takes three tensors of one dtype of {', '.join(NUMBERS)}, not {q.dtype}, {k.dtype}, {v.dtype}"
    return None


def launch_of(launch: Launch, plans: Sequence[ExchangePlan]) -> Launch:
    """As many blocks as ``launch`` has in all, where there are rows for their warps: every block serves everybody."""
    rows = 2 * plans[0].batch * max(plans[0].seq_splits)
    wanted = -(-rows // WARPS_OF_A_BLOCK)
    return Launch(max(1, min(launch.remote_blocks + launch.local_blocks, wanted, MAX_REMOTE_BLOCKS)), 0, 0.0)


def fill(
    struct: FusedPlanStruct,
    plans: Sequence[ExchangePlan],
    strides: Sequence[Sequence[int]],
    *,
    phase_strides: Sequence[int],
    norm: str | None,
    turn: str | None,
    eps: float,
) -> None:
    """Queries and keys of these element strides; ``phase_strides`` count bytes per batch entry and token."""
    q = plans[0]
    offset = 0
    for tensor, plan, stride in zip(struct.tensor, plans, strides, strict=False):
        _fill_tensor(tensor, plan, [step * plan.item_bytes for step in stride], offset)
        offset += plan.slot_bytes
    struct.phase_batch, struct.phase_token = phase_strides
    struct.batch, struct.tokens, struct.target_tokens = q.batch, q.seq_splits[q.rank], q.seq
    struct.head_units_log2 = (q.head_dim * q.item_bytes // UNIT_BYTES).bit_length() - 1
    struct.number, struct.norm, struct.turn, struct.eps = NUMBERS[q.dtype], NORMS[norm], TURNS[turn], eps


def _fill_tensor(tensor: FusedTensorStruct, plan: ExchangePlan, strides: Sequence[int], slot_offset: int) -> None:
    tensor.source_batch, tensor.source_token, tensor.source_head = strides[:3]
    head_bytes = plan.head_dim * plan.item_bytes
    first_token = sum(plan.seq_splits[: plan.rank])
    for rank, heads in enumerate(plan.head_splits):
        tensor.target_row[rank] = heads * head_bytes
        tensor.target[rank] = slot_offset + first_token * heads * head_bytes
        tensor.first_unit[rank] = sum(plan.head_splits[:rank]) * head_bytes // UNIT_BYTES
    tensor.units = plan.heads * head_bytes // UNIT_BYTES
