"""A fused call site between GPUs: what the engine is told in each call, kept and changed in place."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import torch

from ithaka.comm_ext.ulysses.cuda_calibration import Launch
from ithaka.comm_ext.ulysses.errors import UlyssesErrorCode, UlyssesInputError
from ithaka.comm_ext.ulysses.fused_plan import (
    UNIT_BYTES,
    FusedPlanStruct,
    FusedSourcesStruct,
    fill,
    launch_of,
    refusal,
)
from ithaka.comm_ext.ulysses.fused_transform import QkTransform
from ithaka.comm_ext.ulysses.plan import ExchangePlan


def fused_launch(plans: Sequence[ExchangePlan], launch: Launch) -> Launch:
    """The fused kernel's launch instead of a plain one. Raises UlyssesInputError where the kernel can't serve the tensors."""
    reason = refusal(plans)
    if reason is not None:
        raise UlyssesInputError(UlyssesErrorCode.BAD_ARGUMENT, f"{reason}: norm and turn them first, then scatter_qkv")
    return launch_of(launch, plans)


class FusedSite:
    """Structures of one call site, by layout of the inputs."""

    def __init__(self, plans: tuple[ExchangePlan, ...]) -> None:
        self._plans = plans
        self._structs: dict[tuple[Any, ...], FusedPlanStruct] = {}
        self._sources = FusedSourcesStruct()

    def bind(self, tensors: Sequence[torch.Tensor], transform: QkTransform) -> tuple[int, int, QkTransform]:
        """Addresses of the plan and the sources for one call, and the transform as it is read: keep it until it is launched."""
        norm, rope = transform.norm, transform.rope
        if rope is not None and not _is_readable(rope.phases):
            transform = QkTransform(norm, type(rope)(rope.phases.contiguous(), rope.pairing))
            rope = transform.rope
        key = (
            *(tensor.stride() for tensor in tensors[:2]),
            None if rope is None else (rope.phases.stride(), rope.pairing),
            None if norm is None else (norm.span, norm.eps),
        )
        struct = self._structs.get(key)
        if struct is None:
            struct = self._structs[key] = FusedPlanStruct()
            fill(
                struct,
                self._plans,
                [tensor.stride() for tensor in tensors],
                phase_strides=(0, 0) if rope is None else _phase_strides(rope.phases),
                norm=None if norm is None else norm.span,
                turn=None if rope is None else rope.pairing,
                eps=0.0 if norm is None else norm.eps,
            )
        for index, tensor in enumerate(tensors):
            self._sources.tensor[index] = tensor.data_ptr()
        if norm is not None:
            self._sources.weight[0], self._sources.weight[1] = norm.q_weight.data_ptr(), norm.k_weight.data_ptr()
        if rope is not None:
            self._sources.phases = rope.phases.data_ptr()
        return ctypes.addressof(struct), ctypes.addressof(self._sources), transform


def readable(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The tensors themselves where whole units can be read from them, else contiguous copies."""
    return [tensor if _is_readable(tensor) else tensor.contiguous() for tensor in tensors]


def _is_readable(x: torch.Tensor) -> bool:
    strides = [step * x.element_size() for step, count in zip(x.stride()[:-1], x.shape[:-1], strict=True) if count > 1]
    return x.stride(-1) == 1 and all(number % UNIT_BYTES == 0 for number in (x.data_ptr(), *strides))


def _phase_strides(phases: torch.Tensor) -> tuple[int, int]:
    *batch, token, _ = (step * phases.element_size() for step in phases.stride())
    return (batch[0] if batch else 0), token
