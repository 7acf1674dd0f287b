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
from typing import Any

import torch

from ithaka.comm_ext.ulysses.alone import Alone
from ithaka.comm_ext.ulysses.backend import Exchange, Membership
from ithaka.comm_ext.ulysses.call_sites import CallSites, Kind
from ithaka.comm_ext.ulysses.chunk_op import traced_gather_chunk, traced_scatter_chunk
from ithaka.comm_ext.ulysses.cuda_calibration import Calibration
from ithaka.comm_ext.ulysses.errors import UlyssesClosedError, UlyssesErrorCode, UlyssesInputError
from ithaka.comm_ext.ulysses.fused_op import traced_fused
from ithaka.comm_ext.ulysses.fused_transform import QkNorm, QkRope, QkTransform
from ithaka.comm_ext.ulysses.group import RankGroup
from ithaka.comm_ext.ulysses.joining import Backend, join
from ithaka.comm_ext.ulysses.ops import register, traced_exchange, traced_send, traced_wait
from ithaka.comm_ext.ulysses.plan import Band, Direction

__all__ = ["Backend", "Splits", "UlyssesCommunicator"]

Splits = Sequence[int] | None


class UlyssesCommunicator:
    """One rank's end of a group. Not thread-safe. Inference only: no gradient flows through an exchange.

    Attributes:
        rank: index of this rank.
        num_ranks: ranks in the group.
        backend: what carries the bytes: ``"host"``; ``"auto"``, ``"sm"`` or ``"copy_engine"`` between GPUs; or
            ``"passthrough"`` in a group of one.
        device: where the tensors live.
        fallback_reason: why ``auto`` did not take a faster backend; None if nothing was given up.
        turn, announced, handle: for ops.py: what keeps compiled exchanges in order, inputs and outputs of those sent, and
            the number by which a compiled graph finds this communicator.
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
        joined = join(self._group, max_bytes, backend, self.device, calibration, timeout_s, join_timeout_s)
        self.backend, self.fallback_reason = joined.backend, joined.fallback_reason
        self._membership: Membership = joined.membership
        self._exchange: Exchange[Any] = joined.exchange
        self._calls = CallSites(self.rank, self.num_ranks, self.device, self._membership, self._exchange)
        self.turn = torch.zeros(1, dtype=torch.int64)
        self.announced: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}
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
        replicated: int = 0,
    ) -> torch.Tensor:
        """Sequence shard to head shard: ``x`` [B, S/P, H, D] → [B, S, H/P, D].

        Args:
            x: any dtype and strides, on the communicator's device; free to change when this returns.
            tag: names a call site; the result is then a lease.
            out: where the result is wanted, of its shape and dtype, not overlapping ``x``; it is returned.
            seq_splits: tokens of each rank, if they are not all equal.
            head_splits: heads of each rank, if H is no multiple of P.
            replicated: so many rows behind the shard are the same on every rank (a prompt's, say) and come behind the whole
                sequence, each rank's heads of them; gather_heads brings them back with all heads. Splits don't count them.
        """
        return self._exchange_one(Direction.SCATTER, x, tag, out, seq_splits, head_splits, replicated)

    def gather_heads(
        self,
        x: torch.Tensor,
        *,
        tag: str | None = None,
        out: torch.Tensor | None = None,
        seq_splits: Splits = None,
        head_splits: Splits = None,
        replicated: int = 0,
    ) -> torch.Tensor:
        """Head shard back to sequence shard: ``x`` [B, S, H/P, D] → [B, S/P, H, D]. Arguments as for scatter_heads."""
        return self._exchange_one(Direction.GATHER, x, tag, out, seq_splits, head_splits, replicated)

    def exchange_into(
        self,
        direction: Direction,
        tensors: Sequence[torch.Tensor],
        outs: Sequence[torch.Tensor],
        *,
        seq_splits: Splits = None,
        head_splits: Splits = None,
        replicated: int = 0,
        transform: QkTransform | None = None,
    ) -> None:
        """Several exchanges in one direction, with one announcement and one wait, each into its ``out``.

        ``transform``: of the first two of three tensors, as in fused_qk_norm_rope_scatter; into ordinary memory only.
        """
        fused = transform is not None
        kind = Kind(direction, None, _plain(seq_splits), _plain(head_splits), None, replicated, fused)
        self._ensure_open()
        self._calls.run(kind, tuple(tensors), outs, transform)

    def scatter_qkv(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        *,
        tag: str | None = "qkv",
        seq_splits: Splits = None,
        head_splits: Splits = None,
        replicated: int = 0,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Three scatters with one announcement and one wait; results are leases unless ``tag`` is None.

        ``k`` and ``v`` may have fewer heads than ``q`` (grouped queries): each rank keeps the ratio, or it is BAD_SHAPE.
        Fewer key heads than ranks are held by several ranks each. ``head_splits`` counts heads of ``q``.
        """
        if torch.compiler.is_compiling():
            received: Sequence[torch.Tensor] = traced_exchange(
                self, Direction.SCATTER, (q, k, v), None, seq_splits, head_splits, replicated
            )
        else:
            self._ensure_open()
            kind = Kind(Direction.SCATTER, tag, _plain(seq_splits), _plain(head_splits), None, replicated)
            received = self._calls.run(kind, (q, k, v))
        return received[0], received[1], received[2]

    def scatter_qkv_head_chunk(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        *,
        head_offset: int,
        head_count: int,
        tag: str | None = "qkv chunk",
        seq_splits: Splits = None,
        head_splits: Splits = None,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """``scatter_qkv`` of a part of each rank's heads: from its ``head_offset``-th on, ``head_count`` of ``q``.

        Inputs are whole, [B, S/P, H, D]; results [B, S, head_count, D], fewer heads where a rank's share ends. So attention
        over the first heads begins while the others travel. Key heads come in proportion, or the one that the chunk shares.
        """
        band = Band(head_offset, head_count)
        if torch.compiler.is_compiling():
            return traced_scatter_chunk(self, (q, k, v), band, tag, seq_splits, head_splits)
        self._ensure_open()
        received = self._calls.scatter_banded(
            Kind(Direction.SCATTER, tag, _plain(seq_splits), _plain(head_splits)), (q, k, v), band
        )
        return received[0], received[1], received[2]

    def gather_head_chunk(
        self,
        x: torch.Tensor,
        *,
        head_offset: int,
        head_count: int,
        out: torch.Tensor,
        tag: str = "head chunk",
        seq_splits: Splits = None,
        head_splits: Splits = None,
    ) -> torch.Tensor:
        """A part of each rank's heads [B, S, head_count, D] into its place in ``out`` [B, S/P, H, D], which is returned.

        ``head_splits`` are the whole shares. The other heads of ``out`` stay as they are.
        """
        band = Band(head_offset, head_count)
        if torch.compiler.is_compiling():
            return traced_gather_chunk(self, x, band, out, tag, seq_splits, head_splits)
        self._ensure_open()
        return self._calls.gather_banded(Kind(Direction.GATHER, tag, _plain(seq_splits), _plain(head_splits)), x, band, out)

    def exchange_chunks(self, x: torch.Tensor, *, tag: str | None = None, out: torch.Tensor | None = None) -> torch.Tensor:
        """All-to-all of equal chunks: ``x`` [P, ...], chunk r for rank r → [P, ...], chunk r from rank r. Any dtype."""
        if x.dim() < 1 or x.shape[0] != self.num_ranks or not x.numel():
            self._refuse(UlyssesErrorCode.BAD_SHAPE, f"expected [{self.num_ranks}, ...], a chunk per rank, got {list(x.shape)}")
        if out is not None and (out.shape != x.shape or not out.is_contiguous()):
            self._refuse(UlyssesErrorCode.BAD_SHAPE, f"out must be contiguous, of shape {list(x.shape)}")
        flat = x.reshape(1, 1, self.num_ranks, -1)
        into = None if out is None else out.view(1, self.num_ranks, 1, -1)
        received = self.scatter_heads(flat, tag=tag, out=into).view(x.shape)
        return received if out is None else out

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
            return traced_fused(self, (q, k, v), transform, seq_splits, head_splits)
        self._ensure_open()
        kind = Kind(Direction.SCATTER, tag, _plain(seq_splits), _plain(head_splits), fused=True)
        received = self._calls.run(kind, (q, k, v), None, transform)
        return received[0], received[1], received[2]

    def scatter_heads_async(
        self, x: torch.Tensor, tag: str, *, seq_splits: Splits = None, head_splits: Splits = None, replicated: int = 0
    ) -> None:
        """Send now, receive by ``wait``. One call per tag can be under way, at most 16 in all. Arguments as in scatter_heads.

        ``x`` must not change before ``wait``: a copy engine may still read it.
        """
        if torch.compiler.is_compiling():
            traced_send(self, x, tag, seq_splits, head_splits, replicated)
            return
        self._ensure_open()
        self._calls.send(x, Kind(Direction.SCATTER, tag, _plain(seq_splits), _plain(head_splits), None, replicated))

    def wait(self, tags: str | Sequence[str]) -> tuple[torch.Tensor, ...]:
        """One wait for all of ``tags``; their results [B, S, H/P, D] in that order, as leases."""
        names = (tags,) if isinstance(tags, str) else tuple(tags)
        if torch.compiler.is_compiling():
            return traced_wait(self, names)
        self._ensure_open()
        return self._calls.wait(names)

    def input_buffer(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Memory that an exchange reads without staging: ordinary memory, since every engine reads any tensor where it is."""
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
        """Memory fit for ``out`` of a call on an input of ``shape``; see ``allocate``."""
        self._ensure_open()
        plan = self._calls.plan(Kind(direction, None, _plain(seq_splits), _plain(head_splits)), shape, dtype)
        return self.allocate(plan.output_shape, dtype)

    def allocate(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Memory that peers write straight into when it, or a view of it, is an ``out``: a model's ring of keys, say.

        Between GPUs it is a part of the window (of ``max_bytes``) for as long as the communicator lives, and a call into it
        makes no copy; views may differ from rank to rank. All work that reads such an ``out`` must be ordered before the
        call that writes it again; the call itself waits until that is so on all ranks. On a host it is ordinary memory: one
        copy from the window. Uninitialised. Raises UlyssesInputError (OVER_CAPACITY).
        """
        self._ensure_open()
        num_bytes = math.prod(shape) * dtype.itemsize
        return self._exchange.allocate(num_bytes).view(dtype).view(tuple(shape))

    def check(self) -> None:
        """Raise if the group is broken, or a peer's process has ended. Never waits; meant for the end of a step."""
        if self._closed:
            raise _closed_error()
        self._calls.check()

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
            **self._calls.counters.plain(),
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
        self._exchange = Alone(self.device)
        self._calls.forget(self._exchange)

    def _exchange_one(
        self,
        direction: Direction,
        x: torch.Tensor,
        tag: str | None,
        out: torch.Tensor | None,
        seq_splits: Splits,
        head_splits: Splits,
        replicated: int,
    ) -> torch.Tensor:
        if torch.compiler.is_compiling():
            return traced_exchange(self, direction, (x,), out, seq_splits, head_splits, replicated)[0]
        self._ensure_open()
        kind = Kind(direction, tag, _plain(seq_splits), _plain(head_splits), None, replicated)
        return self._calls.run(kind, (x,), None if out is None else (out,))[0]

    def _ensure_open(self) -> None:
        if self._closed:
            raise _closed_error()

    def _refuse(self, code: UlyssesErrorCode, text: str) -> None:
        """Turn a call down, and tell the peers."""
        self._ensure_open()
        self._membership.ensure_sound()
        self._membership.refuse(text)
        raise UlyssesInputError(code, text)


def _plain(splits: Splits) -> tuple[int, ...] | None:
    return None if splits is None else tuple(splits)


def _closed_error() -> UlyssesClosedError:
    return UlyssesClosedError(UlyssesErrorCode.CLOSED, "this communicator is closed: make a new group for a new one")
