"""The face of Ulysses sequence parallelism: how the ranks of a group share one tensor, whatever carries the bytes.

Legend: B batch, S tokens of all ranks, H heads of all ranks, D head dim, P ranks; layout [B, S, H, D]. A rank holds
``[B, S/P, H, D]`` outside of attention and ``[B, S, H/P, D]`` inside. All ranks make the same calls in the same order.

What a call returns: without ``tag`` a fresh tensor; with ``tag`` a *lease*, a view of the communicator's window without a
copy, good until the **second next** call of the same kind and tag begins (a lease still held then raises LEASE_OVERRUN).

What goes wrong, raises (see errors.py). An input error that every rank makes leaves the communicator usable; one that only
some make breaks it, and so does a rank that dies, stops for ``timeout_s`` or closes. Broken is for good: every call on every
rank then raises the same UlyssesPeerError, ``close`` returns at once, and the group is to be started anew.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Literal

import torch

from ithaka.comm_ext.ulysses.alone import Alone
from ithaka.comm_ext.ulysses.backend import CallSite, Exchange, Membership
from ithaka.comm_ext.ulysses.errors import (
    UlyssesBackendError,
    UlyssesClosedError,
    UlyssesError,
    UlyssesErrorCode,
    UlyssesInputError,
)
from ithaka.comm_ext.ulysses.group import RankGroup
from ithaka.comm_ext.ulysses.host import HostExchange
from ithaka.comm_ext.ulysses.plan import Direction, ExchangePlan, key_value_head_splits, plan_exchange
from ithaka.comm_ext.ulysses.rendezvous import MAX_UNSETTLED, Rendezvous

Backend = Literal["auto", "copy_engine", "sm", "nccl", "host"]
Splits = Sequence[int] | None
_BACKENDS = ("auto", "copy_engine", "sm", "nccl", "host")
_NO_DEVICE_ENGINE = "this build exchanges through host memory only: it has no CUDA engine"
_MAX_UNTAGGED_SITES = 256


class UlyssesCommunicator:
    """One rank's end of a group. Not thread-safe. Inference only: no gradient flows through an exchange.

    Attributes:
        rank: index of this rank.
        num_ranks: ranks in the group.
        backend: what carries the bytes: ``"host"``, or ``"passthrough"`` in a group of one.
        fallback_reason: why ``auto`` did not take a faster backend; None if nothing was given up.
    """

    def __init__(
        self,
        group: RankGroup | None,
        *,
        max_bytes: int,
        backend: Backend = "auto",
        timeout_s: float = 3.0,
        join_timeout_s: float = 60.0,
    ) -> None:
        """Join the group; collective, returns when all ranks have joined and agreed.

        Args:
            group: this rank's seat; its descriptors belong to the communicator from here on, also if this raises.
                None is a group of one.
            max_bytes: size of this rank's window, which all calls share; equal on all ranks. An untagged call needs twice
                the bytes of its result (of the largest rank, rounded up to a power of two), shared with the other untagged
                calls; each tagged kind of call needs three times the bytes of its results. Host pages are taken when
                touched, so be generous.
            backend: ``"auto"`` takes the fastest that all ranks can use.
            timeout_s: longest wait for a peer within a call.
            join_timeout_s: longest wait here, while other ranks may still be loading.

        Raises UlyssesInputError, UlyssesBackendError; UlyssesPeerError if another rank is missing, refuses or differs.
        """
        self._closed = True  # until the join succeeds there is nothing to forget
        self._group = group if group is not None else RankGroup.alone()
        self.rank = self._group.rank
        self.num_ranks = self._group.num_ranks
        self._timeout_s = timeout_s
        self.backend, self.fallback_reason = "passthrough", None if backend != "auto" else _NO_DEVICE_ENGINE
        refusal = _refusal(max_bytes, backend, timeout_s, join_timeout_s)
        self._membership: Membership
        self._exchange: Exchange[Any]
        if self.num_ranks == 1:
            if refusal is not None:
                raise refusal
            self._membership = self._exchange = Alone()
        else:
            self.backend = "host"
            rendezvous = Rendezvous(self._group, timeout_s=timeout_s)
            try:
                rendezvous.join({"max_bytes": max_bytes, "backend": self.backend}, refusal=refusal, timeout_s=join_timeout_s)
                self._exchange = HostExchange(self._group, rendezvous, max_bytes=max_bytes)
            except BaseException:
                rendezvous.release()
                raise
            self._membership = rendezvous
        self._sites: dict[tuple[Any, ...], CallSite] = {}
        self._pending: dict[str, CallSite] = {}
        self._closed = False

    def scatter_heads(
        self,
        x: torch.Tensor,
        *,
        tag: str | None = None,
        out: torch.Tensor | None = None,
        seq_splits: Splits = None,
        head_splits: Splits = None,
    ) -> torch.Tensor:
        """Sequence shard to head shard: ``x`` [B, S/P, H, D] → [B, S, H/P, D].

        Args:
            x: any dtype and strides, on the communicator's device; free to change when this returns.
            tag: names a call site; the result is then a lease.
            out: where the result is wanted, of its shape and dtype, not overlapping ``x``; it is returned.
            seq_splits: tokens of each rank, if they are not all equal.
            head_splits: heads of each rank, if H is no multiple of P.
        """
        return self._exchange_one(Direction.SCATTER, x, tag, out, seq_splits, head_splits)

    def gather_heads(
        self,
        x: torch.Tensor,
        *,
        tag: str | None = None,
        out: torch.Tensor | None = None,
        seq_splits: Splits = None,
        head_splits: Splits = None,
    ) -> torch.Tensor:
        """Head shard back to sequence shard: ``x`` [B, S, H/P, D] → [B, S/P, H, D]. Arguments as for scatter_heads."""
        return self._exchange_one(Direction.GATHER, x, tag, out, seq_splits, head_splits)

    def scatter_qkv(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        *,
        tag: str | None = "qkv",
        seq_splits: Splits = None,
        head_splits: Splits = None,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Three scatters with one announcement and one wait; results are leases unless ``tag`` is None.

        ``k`` and ``v`` may have fewer heads than ``q`` (grouped queries): each rank keeps the ratio, or it is BAD_SHAPE.
        ``head_splits`` counts heads of ``q``.
        """
        with self._call():
            site = self._site((Direction.SCATTER,) * 3, (q, k, v), tag, seq_splits, head_splits)
            self._refuse_pending(tag)
            self._exchange.send(site, (q, k, v))
            received = self._exchange.receive((site,), None)
        return received[0], received[1], received[2]

    def scatter_heads_async(self, x: torch.Tensor, tag: str, *, seq_splits: Splits = None, head_splits: Splits = None) -> None:
        """Send now, receive by ``wait``. One call per tag can be under way, at most 16 in all; ``x`` is free afterwards."""
        with self._call():
            self._refuse_pending(tag)
            if len(self._pending) >= MAX_UNSETTLED:
                raise UlyssesInputError(
                    UlyssesErrorCode.BAD_TAG, f"{MAX_UNSETTLED} tags are under way: wait for some of them first"
                )
            site = self._site((Direction.SCATTER,), (x,), tag, seq_splits, head_splits)
            self._exchange.send(site, (x,))
            self._pending[tag] = site

    def wait(self, tags: str | Sequence[str]) -> tuple[torch.Tensor, ...]:
        """One wait for all of ``tags``; their results [B, S, H/P, D] in that order, as leases."""
        names = (tags,) if isinstance(tags, str) else tuple(tags)
        with self._call():
            if not names or len(set(names)) != len(names) or not all(name in self._pending for name in names):
                raise UlyssesInputError(
                    UlyssesErrorCode.BAD_TAG, f"wait wants distinct tags under way, got {names}, has {(*self._pending,)}"
                )
            sites = [self._pending.pop(name) for name in names]
            return tuple(self._exchange.receive(sites, None))

    def input_buffer(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Memory that an exchange reads without staging. Ordinary memory on the host, where any tensor is such."""
        return torch.empty(tuple(shape), dtype=dtype)

    def allocate_output(
        self,
        direction: Direction,
        shape: Sequence[int],
        dtype: torch.dtype,
        *,
        seq_splits: Splits = None,
        head_splits: Splits = None,
    ) -> torch.Tensor:
        """Memory fit for ``out`` of a call on an input of ``shape``. Ordinary memory on the host: one copy from the window."""
        plan = self._plan(direction, shape, dtype, seq_splits, head_splits)
        return torch.empty(plan.output_shape, dtype=dtype)

    def check(self) -> None:
        """Raise if the group is broken, or a peer's process has ended. Never waits; meant for the end of a step."""
        if self._closed:
            raise _closed_error()
        self._membership.check()

    def abort(self, reason: str) -> None:
        """Break the group on purpose: every rank's current or next call raises UlyssesPeerError naming this rank."""
        if not self._closed:
            self._membership.abort(reason)

    def describe(self) -> dict[str, Any]:
        """What this communicator is and has done, in plain values. Not after ``close``."""
        if self._closed:
            raise _closed_error()
        return {
            "rank": self.rank,
            "num_ranks": self.num_ranks,
            "backend": self.backend,
            "fallback_reason": self.fallback_reason,
            "timeout_s": self._timeout_s,
            **self._exchange.describe(),
        }

    def close(self) -> None:
        """Leave the group and free everything; collective, idempotent, never raises.

        Waits until all ranks leave, at most ``timeout_s`` per peer, and not at all if the group is broken. Leases stay
        readable until they are dropped.
        """
        if not self._closed:
            self._closed = True
            self._membership.close()
            self._forget()

    def __enter__(self) -> UlyssesCommunicator:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        if error is not None:
            self.abort(f"{type(error).__name__}: {error}")  # the others must not wait for a rank that failed
        self.close()

    def __del__(self) -> None:
        if not getattr(self, "_closed", True):
            self._closed = True
            self._membership.release()
            warnings.warn(f"unclosed {type(self).__name__} on rank {self.rank}", ResourceWarning, stacklevel=2)

    def _forget(self) -> None:
        self._sites.clear()
        self._pending.clear()
        self._exchange = Alone()

    def _exchange_one(
        self,
        direction: Direction,
        x: torch.Tensor,
        tag: str | None,
        out: torch.Tensor | None,
        seq_splits: Splits,
        head_splits: Splits,
    ) -> torch.Tensor:
        with self._call():
            site = self._site((direction,), (x,), tag, seq_splits, head_splits)
            self._refuse_pending(tag)
            if out is not None:
                _check_out(out, x, site.plans[0], may_alias=self.num_ranks == 1)
            self._exchange.send(site, (x,))
            return self._exchange.receive((site,), out)[0]

    def _call(self) -> _Call:
        if self._closed:
            raise _closed_error()
        return _Call(self._membership)

    def _site(
        self,
        directions: tuple[Direction, ...],
        tensors: tuple[torch.Tensor, ...],
        tag: str | None,
        seq_splits: Splits,
        head_splits: Splits,
    ) -> CallSite:
        seq_splits = None if seq_splits is None else tuple(seq_splits)
        head_splits = None if head_splits is None else tuple(head_splits)
        for tensor in tensors:
            _check_input(tensor)
        key = (directions, tag, seq_splits, head_splits, *((tensor.shape, tensor.dtype) for tensor in tensors))
        site = self._sites.get(key)
        if site is None:
            heads = tensors[0].shape[2] if tensors[0].dim() == 4 else 0
            plans = tuple(
                self._plan(
                    direction,
                    tensor.shape,
                    tensor.dtype,
                    seq_splits,
                    key_value_head_splits(heads, tensor.shape[2], head_splits) if len(tensors) > 1 else head_splits,
                )
                for direction, tensor in zip(directions, tensors, strict=True)
            )
            self._make_room()
            site = self._sites[key] = self._exchange.prepare(plans, tag)
        return site

    def _plan(
        self, direction: Direction, shape: Sequence[int], dtype: torch.dtype, seq_splits: Splits, head_splits: Splits
    ) -> ExchangePlan:
        return plan_exchange(
            direction,
            shape,
            rank=self.rank,
            num_ranks=self.num_ranks,
            dtype=str(dtype).removeprefix("torch."),
            item_bytes=dtype.itemsize,
            seq_splits=seq_splits,
            head_splits=head_splits,
        )

    def _make_room(self) -> None:
        """Forget the untagged sites when there are too many; they own nothing in the window."""
        untagged = [key for key in self._sites if key[1] is None]
        if len(untagged) >= _MAX_UNTAGGED_SITES:
            for key in untagged:
                del self._sites[key]

    def _refuse_pending(self, tag: str | None) -> None:
        if tag in self._pending:
            raise UlyssesInputError(UlyssesErrorCode.BAD_TAG, f"tag {tag!r} is under way: wait for it first")


class _Call:
    """Frame of a call: an input error is told to the peers; anything unforeseen breaks the group at once."""

    __slots__ = ("_membership",)

    def __init__(self, membership: Membership) -> None:
        self._membership = membership

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        if error is None:
            return
        if isinstance(error, UlyssesInputError):
            self._membership.refuse(str(error))
        elif not isinstance(error, UlyssesError):
            self._membership.abort(f"{type(error).__name__} inside a call: {error}")


def _refusal(max_bytes: int, backend: str, timeout_s: float, join_timeout_s: float) -> UlyssesError | None:
    """What makes these arguments impossible on this rank, if anything."""
    if backend not in _BACKENDS:
        return UlyssesInputError(
            UlyssesErrorCode.BAD_ARGUMENT, f"backend must be one of {', '.join(_BACKENDS)}, got {backend!r}"
        )
    if max_bytes < 1:
        return UlyssesInputError(UlyssesErrorCode.BAD_ARGUMENT, f"max_bytes must be at least 1, got {max_bytes}")
    for name, seconds in (("timeout_s", timeout_s), ("join_timeout_s", join_timeout_s)):
        if not (seconds > 0 and math.isfinite(seconds)):
            return UlyssesInputError(
                UlyssesErrorCode.BAD_ARGUMENT, f"{name} must be a positive number of seconds, got {seconds}"
            )
    if backend not in ("auto", "host"):
        return UlyssesBackendError(
            UlyssesErrorCode.BACKEND_UNAVAILABLE,
            f'backend {backend!r} is not available: {_NO_DEVICE_ENGINE}. Use "auto" or "host"',
        )
    return None


def _check_input(x: torch.Tensor) -> None:
    if not x.is_cpu or x.layout is not torch.strided:
        raise UlyssesInputError(
            UlyssesErrorCode.BAD_DEVICE, f"the host backend takes dense CPU tensors, got {x.layout} on {x.device}"
        )
    if x.requires_grad and torch.is_grad_enabled():
        raise UlyssesInputError(
            UlyssesErrorCode.NEEDS_GRADIENT, "exchanges carry no gradient: call under torch.no_grad(), or detach"
        )


def _check_out(out: torch.Tensor, x: torch.Tensor, plan: ExchangePlan, *, may_alias: bool) -> None:
    _check_input(out)
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


def _closed_error() -> UlyssesClosedError:
    return UlyssesClosedError(UlyssesErrorCode.CLOSED, "this communicator is closed: make a new group for a new one")
