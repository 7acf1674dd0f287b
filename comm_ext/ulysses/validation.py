"""What a caller may hand to a communicator: checked before anything is written or announced."""

from __future__ import annotations

import math

import torch

from ithaka.comm_ext.ulysses.errors import UlyssesBackendError, UlyssesError, UlyssesErrorCode, UlyssesInputError
from ithaka.comm_ext.ulysses.plan import ExchangePlan

BACKENDS = ("auto", "copy_engine", "sm", "nccl", "gloo", "host")
NO_DEVICE_ENGINE = "no device was given: pass device=torch.device('cuda', ...) to exchange between GPUs"
DEVICE_BACKENDS = ("auto", "sm", "copy_engine", "nccl")


def refusal_of(
    max_bytes: int, backend: str, device: torch.device, timeout_s: float, join_timeout_s: float
) -> UlyssesError | None:
    """What makes these arguments impossible on this rank, if anything."""
    if backend not in BACKENDS:
        return UlyssesInputError(
            UlyssesErrorCode.BAD_ARGUMENT, f"backend must be one of {', '.join(BACKENDS)}, got {backend!r}"
        )
    if max_bytes < 1:
        return UlyssesInputError(UlyssesErrorCode.BAD_ARGUMENT, f"max_bytes must be at least 1, got {max_bytes}")
    for name, seconds in (("timeout_s", timeout_s), ("join_timeout_s", join_timeout_s)):
        if not (seconds > 0 and math.isfinite(seconds)):
            return UlyssesInputError(
                UlyssesErrorCode.BAD_ARGUMENT, f"{name} must be a positive number of seconds, got {seconds}"
            )
    serves = DEVICE_BACKENDS if device.type == "cuda" else ("auto", "host", "gloo")
    if backend not in serves:
        return UlyssesBackendError(
            UlyssesErrorCode.BACKEND_UNAVAILABLE,
            f"backend {backend!r} is not available on {device}: there are {', '.join(serves)}",
        )
    return None


def check_input(x: torch.Tensor, device: torch.device) -> None:
    if x.device != device or x.layout is not torch.strided:
        raise UlyssesInputError(
            UlyssesErrorCode.BAD_DEVICE, f"this communicator takes dense tensors on {device}, got {x.layout} on {x.device}"
        )
    if x.requires_grad and torch.is_grad_enabled():
        raise UlyssesInputError(
            UlyssesErrorCode.NEEDS_GRADIENT, "exchanges carry no gradient: call under torch.no_grad(), or detach"
        )


def check_output(out: torch.Tensor, x: torch.Tensor, plan: ExchangePlan, *, may_alias: bool) -> None:
    check_input(out, x.device)
    if out.shape != plan.output_shape:
        raise UlyssesInputError(
            UlyssesErrorCode.BAD_SHAPE, f"out must have shape {list(plan.output_shape)}, got {list(out.shape)}"
        )
    if out.dtype != x.dtype:
        raise UlyssesInputError(UlyssesErrorCode.BAD_DTYPE, f"out must have dtype {x.dtype}, got {out.dtype}")
    (out_begin, out_end), (x_begin, x_end) = _extent(out), _extent(x)
    if not may_alias and out_begin < x_end and x_begin < out_end:
        raise UlyssesInputError(UlyssesErrorCode.ALIASED_OUTPUT, "out overlaps the input: give it memory of its own")


def _extent(tensor: torch.Tensor) -> tuple[int, int]:
    """First and one past the last byte address that the tensor touches."""
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    begin = tensor.data_ptr()
    return begin, begin + (last + 1) * tensor.element_size()
