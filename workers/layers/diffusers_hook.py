"""Transformers of diffusers that have a context-parallel plan attend through our exchange.

The plan splits and gathers the sequence at the model's edges, by diffusers' own hooks over torch.distributed. In between, once
in every layer, heads are exchanged: all attention backends of diffusers do that in one private function, which is replaced
here::

    model.enable_parallelism(config=ContextParallelConfig(ulysses_degree=communicator.num_ranks))
    with attention_through(communicator):
        model(...)

Private means that it may change with any release, so the releases are pinned and the function's parameters are compared
before anything is replaced.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import diffusers
import torch
from diffusers.models import attention_dispatch

from ithaka.comm_ext.ulysses.plan import balanced_splits

if TYPE_CHECKING:
    from ithaka.comm_ext.ulysses.communicator import UlyssesCommunicator

SEAM = "_templated_context_parallel_attention"
TESTED_RELEASES = ("0.42",)
_PARAMETERS = (
    *("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa", "return_lse"),
    *("forward_op", "backward_op", "_parallel_config"),
)


class DiffusersSeamError(RuntimeError):
    """The installed diffusers, or a model's parallel configuration, does not fit."""


@contextmanager
def attention_through(communicator: UlyssesCommunicator, *, seq_splits: Sequence[int] | None = None) -> Iterator[None]:
    """Inside, attention of parallelised models exchanges heads by ``communicator``; inference only.

    ``seq_splits``: tokens of each rank, for a plan that splits unevenly (``ulysses_anything``). Heads that the ranks don't
    divide are shared as evenly as whole heads allow. Raises DiffusersSeamError at once if this diffusers is not known.
    """
    original = check_seam(diffusers.__version__, getattr(attention_dispatch, SEAM, None))
    setattr(attention_dispatch, SEAM, _attention(communicator, seq_splits))
    try:
        yield
    finally:
        setattr(attention_dispatch, SEAM, original)


def check_seam(version: str, function: Callable[..., Any] | None) -> Callable[..., Any]:
    """The function that is to be replaced, if it is the one that we know. Raises DiffusersSeamError."""
    release = ".".join(version.split(".")[:2])
    advice = f"install diffusers {' or '.join(f'{known}.*' for known in TESTED_RELEASES)}, or leave this hook out"
    if release not in TESTED_RELEASES:
        raise DiffusersSeamError(f"diffusers {version} has not been tested with this hook: {advice}")
    if function is None:
        raise DiffusersSeamError(f"diffusers {version} has no attention_dispatch.{SEAM}: {advice}")
    parameters = tuple(inspect.signature(function).parameters)
    if parameters != _PARAMETERS:
        raise DiffusersSeamError(
            f"attention_dispatch.{SEAM} of diffusers {version} takes {', '.join(parameters)}; "
            f"expected {', '.join(_PARAMETERS)}: {advice}"
        )
    return function


def _attention(communicator: UlyssesCommunicator, seq_splits: Sequence[int] | None) -> Callable[..., Any]:
    # Parameters as in the function that this stands in for: see _PARAMETERS.
    def attend(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
        return_lse: bool = False,
        *,
        forward_op: Callable[..., Any],
        backward_op: Callable[..., Any],
        _parallel_config: Any = None,
    ) -> Any:
        """[B, s, H, D] three times → [B, s, H, D], and with ``return_lse`` the log-sum-exp [B, s, H]."""
        if is_causal or enable_gqa:
            raise ValueError("causal attention and grouped queries are not split by diffusers' plans")
        _check_config(communicator, _parallel_config.context_parallel_config)
        splits: dict[str, Any] = {"seq_splits": seq_splits, "head_splits": _head_splits(query.shape[2], communicator.num_ranks)}
        q, k, v = communicator.scatter_qkv(query, key, value, **splits)
        if attn_mask is not None and attn_mask.shape[-1] == key.shape[1]:
            attn_mask = _whole_mask(communicator, attn_mask, seq_splits)
        # The operation keeps what a backward pass would need on its first argument.
        seen = forward_op(
            SimpleNamespace(),
            *(q, k, v, attn_mask, dropout_p, is_causal, scale, enable_gqa, return_lse),
            _save_ctx=False,
            _parallel_config=_parallel_config,
        )
        if not return_lse:
            return communicator.gather_heads(seen, **splits)
        out, lse, *_ = seen
        return communicator.gather_heads(out, **splits), communicator.gather_heads(lse[..., None], **splits)[..., 0]

    return attend


def _check_config(communicator: UlyssesCommunicator, config: Any) -> None:
    if config.ring_degree != 1 or config.ulysses_degree != communicator.num_ranks:
        raise DiffusersSeamError(
            f"the model is set up for ulysses_degree={config.ulysses_degree} and ring_degree={config.ring_degree}, but the "
            f"communicator's ranks need ContextParallelConfig(ulysses_degree={communicator.num_ranks})"
        )
    if config._ulysses_local_rank != communicator.rank:
        raise DiffusersSeamError(
            f"this process is rank {config._ulysses_local_rank} of the model's mesh and rank {communicator.rank} of the "
            "communicator: number both alike"
        )


def _head_splits(num_heads: int, num_ranks: int) -> tuple[int, ...] | None:
    return None if num_heads % num_ranks == 0 else balanced_splits(num_heads, num_ranks)


def _whole_mask(communicator: UlyssesCommunicator, mask: torch.Tensor, seq_splits: Sequence[int] | None) -> torch.Tensor:
    """[..., s] → [..., S]: every rank gets a copy, as if copies were heads."""
    ranks = communicator.num_ranks
    copies = mask.reshape(-1, mask.shape[-1], 1, 1).expand(-1, -1, ranks, -1)
    whole = communicator.scatter_heads(copies, seq_splits=seq_splits, head_splits=None if seq_splits is None else (1,) * ranks)
    return whole.reshape(*mask.shape[:-1], -1)
