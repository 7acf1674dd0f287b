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

import warnings
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Literal

import torch

from ithaka.comm_ext.ulysses.alone import Alone
from ithaka.comm_ext.ulysses.backend import CallSite, Exchange, Membership
from ithaka.comm_ext.ulysses.cuda_calibration import Calibration
from ithaka.comm_ext.ulysses.cuda_member import join_devices
from ithaka.comm_ext.ulysses.errors import (
    UlyssesClosedError,
    UlyssesError,
    UlyssesErrorCode,
    UlyssesInputError,
)
from ithaka.comm_ext.ulysses.fused_transform import QkNorm, QkRope, QkTransform
from ithaka.comm_ext.ulysses.group import RankGroup
from ithaka.comm_ext.ulysses.host import HostExchange
from ithaka.comm_ext.ulysses.ops import register, traced_exchange, traced_send, traced_wait
from ithaka.comm_ext.ulysses.plan import Direction, ExchangePlan, plan_exchange
from ithaka.comm_ext.ulysses.rendezvous import MAX_UNSETTLED, Rendezvous
from ithaka.comm_ext.ulysses.validation import NO_DEVICE_ENGINE, check_input, check_output, grouped_head_splits, refusal_of

Backend = Literal["auto", "copy_engine", "sm", "nccl", "host"]
Splits = Sequence[int] | None
_MAX_UNTAGGED_SITES = 256


class UlyssesCommunicator:
    """One rank's end of a group. Not thread-safe. Inference only: no gradient flows through an exchange.

    Attributes:
        rank: index of this rank.
        num_ranks: ranks in the group.
        backend: what carries the bytes: ``"host"``; ``"auto"``, ``"sm"`` or ``"copy_engine"`` between GPUs; or
            ``"passthrough"`` in a group of one.
        device: where the tensors live.
        fallback_reason: why ``auto`` did not take a faster backend; None if nothing was given up.
        turn, announced, handle: for ops.py: what keeps compiled exchanges in order, the outputs of those sent, and the
            number by which a compiled graph finds this communicator.
    """

    def __init__(
        self,
        group: RankGroup | None,
        *,
        max_bytes: int,
        backend: Backend = "auto",
        device: torch.device | str | None = None,
        calibration: Calibration | None = None,
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
            backend: between GPUs ``"sm"`` (a kernel stores to the peers), ``"copy_engine"`` (their memory is written by
                copies), or ``"auto"``, whichever the calibration found faster for a call's size.
            device: where the tensors live; one CUDA device a rank. None is the CPU.
            calibration: how calls of which size are made between GPUs, equal on all ranks; None is the packaged table.
            timeout_s: longest wait for a peer within a call.
            join_timeout_s: longest wait here, while other ranks may still be loading.

        Raises UlyssesInputError, UlyssesBackendError; UlyssesPeerError if another rank is missing, refuses or differs.
        """
        self._closed = True  # until the join succeeds there is nothing to forget
        self._group = group if group is not None else RankGroup.alone()
        self.rank = self._group.rank
        self.num_ranks = self._group.num_ranks
        self._timeout_s = timeout_s
        self.device = torch.device("cpu") if device is None else torch.device(device)
        on_host = self.device.type != "cuda"
        self.backend, self.fallback_reason = "passthrough", NO_DEVICE_ENGINE if backend == "auto" and on_host else None
        refusal = refusal_of(max_bytes, backend, self.device, timeout_s, join_timeout_s)
        self._membership: Membership
        self._exchange: Exchange[Any]
        if self.num_ranks == 1:
            if refusal is not None:
                raise refusal
            self._membership = self._exchange = Alone()
        else:
            self.backend = "host" if on_host else backend
            rendezvous = Rendezvous(self._group, timeout_s=timeout_s)
            facts = {"max_bytes": max_bytes, "backend": self.backend}
            try:
                if on_host or refusal is not None:
                    rendezvous.join(facts, refusal=refusal, timeout_s=join_timeout_s)
                    self._membership, self._exchange = rendezvous, HostExchange(self._group, rendezvous, max_bytes=max_bytes)
                else:
                    self._membership, self._exchange = join_devices(
                        self._group, rendezvous, facts, self.device, calibration, timeout_s, join_timeout_s
                    )
            except BaseException:
                rendezvous.release()
                raise
        self._sites: dict[tuple[Any, ...], CallSite] = {}
        self._pending: dict[str, CallSite] = {}
        self.turn = torch.zeros(1, dtype=torch.int64)
        self.announced: dict[str, torch.Tensor] = {}
        self.handle = register(self)
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

    def exchange_into(
        self,
        direction: Direction,
        tensors: Sequence[torch.Tensor],
        outs: Sequence[torch.Tensor],
        *,
        seq_splits: Splits = None,
        head_splits: Splits = None,
    ) -> None:
        """Several exchanges in one direction, with one announcement and one wait, each into its ``out``."""
        self._exchange_all(direction, tuple(tensors), None, outs, seq_splits, head_splits)

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
        if torch.compiler.is_compiling():
            received: Sequence[torch.Tensor] = traced_exchange(
                self, Direction.SCATTER, (q, k, v), None, seq_splits, head_splits
            )
        else:
            received = self._exchange_all(Direction.SCATTER, (q, k, v), tag, None, seq_splits, head_splits)
        return received[0], received[1], received[2]

    def fused_qk_norm_rope_scatter(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        *,
        norm: QkNorm | None,
        rope: QkRope | None,
        tag: str | None = "qkv",
        seq_splits: Splits = None,
        head_splits: Splits = None,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """``scatter_qkv`` of ``q`` and ``k`` normed and turned: between GPUs on their way, by the kernel that sends them."""
        transform = QkTransform(norm, rope)
        if torch.compiler.is_compiling():
            return self.scatter_qkv(*transform.apply(q, k), v, tag=tag, seq_splits=seq_splits, head_splits=head_splits)
        received = self._exchange_all(Direction.SCATTER, (q, k, v), tag, None, seq_splits, head_splits, transform)
        return received[0], received[1], received[2]

    def scatter_heads_async(self, x: torch.Tensor, tag: str, *, seq_splits: Splits = None, head_splits: Splits = None) -> None:
        """Send now, receive by ``wait``. One call per tag can be under way, at most 16 in all.

        ``x`` must not change before ``wait``: a copy engine may still read it.
        """
        if torch.compiler.is_compiling():
            traced_send(self, x, tag, seq_splits, head_splits)
            return
        self._ensure_usable()
        try:
            self._refuse_pending(tag)
            if len(self._pending) >= MAX_UNSETTLED:
                raise UlyssesInputError(
                    UlyssesErrorCode.BAD_TAG, f"{MAX_UNSETTLED} tags are under way: wait for some of them first"
                )
            site = self._site(Direction.SCATTER, (x,), tag, seq_splits, head_splits)
            self._exchange.send(site, (x,))
            self._pending[tag] = site
        except BaseException as error:
            self._tell_peers(error)
            raise

    def wait(self, tags: str | Sequence[str]) -> tuple[torch.Tensor, ...]:
        """One wait for all of ``tags``; their results [B, S, H/P, D] in that order, as leases."""
        names = (tags,) if isinstance(tags, str) else tuple(tags)
        if torch.compiler.is_compiling():
            return traced_wait(self, names)
        self._ensure_usable()
        try:
            if not names or len(set(names)) != len(names) or not all(name in self._pending for name in names):
                raise UlyssesInputError(
                    UlyssesErrorCode.BAD_TAG, f"wait wants distinct tags under way, got {names}, has {(*self._pending,)}"
                )
            sites = [self._pending.pop(name) for name in names]
            return tuple(self._exchange.receive(sites, None))
        except BaseException as error:
            self._tell_peers(error)
            raise

    def input_buffer(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Memory that an exchange reads without staging. Ordinary memory on the host, where any tensor is such."""
        return torch.empty(tuple(shape), dtype=dtype, device=self.device)

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
        return torch.empty(plan.output_shape, dtype=dtype, device=self.device)

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
        if torch.compiler.is_compiling():
            return traced_exchange(self, direction, (x,), out, seq_splits, head_splits)[0]
        outs = None if out is None else (out,)
        return self._exchange_all(direction, (x,), tag, outs, seq_splits, head_splits)[0]

    def _exchange_all(
        self,
        direction: Direction,
        tensors: tuple[torch.Tensor, ...],
        tag: str | None,
        outs: Sequence[torch.Tensor] | None,
        seq_splits: Splits,
        head_splits: Splits,
        transform: QkTransform | None = None,
    ) -> Sequence[torch.Tensor]:
        self._ensure_usable()
        try:
            if transform is not None:
                transform.check(*tensors[:2])
            site = self._site(direction, tensors, tag, seq_splits, head_splits, fused=transform is not None)
            self._refuse_pending(tag)
            if transform is not None:
                return self._exchange.exchange_fused(site, tensors, transform, outs)
            if outs is not None:
                for x, out, plan in zip(tensors, outs, site.plans, strict=True):
                    check_output(out, x, plan, may_alias=self.num_ranks == 1)
            return self._exchange.exchange(site, tensors, outs)
        except BaseException as error:
            self._tell_peers(error)
            raise

    def _ensure_usable(self) -> None:
        if self._closed:
            raise _closed_error()
        self._membership.ensure_sound()

    def _tell_peers(self, error: BaseException) -> None:
        """An input error is a refusal, which is harmless if all ranks make it; anything unforeseen breaks the group."""
        if isinstance(error, UlyssesInputError):
            self._membership.refuse(str(error))
        elif not isinstance(error, UlyssesError):
            self._membership.abort(f"{type(error).__name__} inside a call: {error}")

    def _site(
        self,
        direction: Direction,
        tensors: tuple[torch.Tensor, ...],
        tag: str | None,
        seq_splits: Splits,
        head_splits: Splits,
        *,
        fused: bool = False,
    ) -> CallSite:
        seq_splits = None if seq_splits is None else tuple(seq_splits)
        head_splits = None if head_splits is None else tuple(head_splits)
        for tensor in tensors:
            check_input(tensor, self.device)
        key = (direction, tag, fused, seq_splits, head_splits, *((tensor.shape, tensor.dtype) for tensor in tensors))
        site = self._sites.get(key)
        if site is None:
            plans = tuple(
                self._plan(direction, tensor.shape, tensor.dtype, seq_splits, splits)
                for tensor, splits in zip(tensors, grouped_head_splits(tensors, head_splits), strict=True)
            )
            self._make_room()
            site = self._sites[key] = self._exchange.prepare(plans, tag, fused=fused)
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


def _closed_error() -> UlyssesClosedError:
    return UlyssesClosedError(UlyssesErrorCode.CLOSED, "this communicator is closed: make a new group for a new one")
