"""The calls of one rank, in order: each kind of call is planned once, then found again; errors are told to the peers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple

import torch

from ithaka.comm_ext.ulysses.backend import CallSite, Exchange, Membership
from ithaka.comm_ext.ulysses.call_counters import CallCounters, Ranges
from ithaka.comm_ext.ulysses.errors import UlyssesError, UlyssesErrorCode, UlyssesInputError, UlyssesPeerError
from ithaka.comm_ext.ulysses.fused_transform import QkTransform
from ithaka.comm_ext.ulysses.grouped_heads import HeadShares, head_shares, proportional_band
from ithaka.comm_ext.ulysses.plan import Band, Direction, ExchangePlan, band_of_all, plan_exchange
from ithaka.comm_ext.ulysses.rendezvous import MAX_UNSETTLED
from ithaka.comm_ext.ulysses.validation import check_input, check_output

Splits = tuple[int, ...] | None
_MAX_UNTAGGED_SITES = 256
_MAX_LANDING_SITES = 4096
"""Kinds of calls with an ``out`` in the arena: a model's ring has one for each place that is written."""


class Kind(NamedTuple):
    """What makes calls alike, besides shapes and dtypes. A tuple, since every call makes and looks up one."""

    direction: Direction
    tag: str | None = None
    seq_splits: Splits = None
    head_splits: Splits = None
    bands: tuple[Band, ...] | None = None
    """Per tensor, where a call moves a part of each rank's heads."""
    replicated: int = 0
    fused: bool = False


@dataclass(slots=True)
class Known:
    """A call site, and what is counted and shown of its calls."""

    site: CallSite
    sent_bytes: int
    range_name: str


class Pending(NamedTuple):
    """A tagged call under way."""

    site: CallSite
    replicated: torch.Tensor | None
    """This rank's heads of the rows behind the shard, which nobody sends."""


class CallSites:
    """See the communicator, whose calls these are."""

    def __init__(
        self, rank: int, num_ranks: int, device: torch.device, membership: Membership, exchange: Exchange[Any]
    ) -> None:
        self.exchange = exchange
        self.counters = CallCounters()
        self._rank, self._num_ranks, self._device = rank, num_ranks, device
        self._membership = membership
        self._ranges = Ranges(device)
        self._sites: dict[tuple[Any, ...], Known] = {}
        self._pending: dict[str, Pending] = {}

    def run(
        self,
        kind: Kind,
        tensors: tuple[torch.Tensor, ...],
        outs: Sequence[torch.Tensor] | None = None,
        transform: QkTransform | None = None,
    ) -> Sequence[torch.Tensor]:
        """Exchange ``tensors`` together: results in ``outs`` if given, else leases of a tagged kind, else fresh."""
        try:
            self._membership.ensure_sound()
            if transform is not None:
                transform.check(*tensors[:2])
            for tensor in tensors:
                check_input(tensor, self._device)
            landings = None if outs is None else self._landings(outs)
            known = self._find(kind, tensors, None if outs is None else outs[0].shape[2], landings)
            self._refuse_pending(kind.tag)
            if outs is not None:
                for x, out, plan in zip(tensors, outs, known.site.plans, strict=False):
                    check_output(out, x, plan, may_alias=self._num_ranks == 1)
            self.counters.count(known.sent_bytes, waits=1)
            with self._ranges.around(known.range_name):
                if transform is not None:
                    return self.exchange.exchange_fused(known.site, tensors, transform, outs)
                if kind.replicated:
                    return self._with_replicated(kind, known, tensors, outs)
                return self.exchange.exchange(known.site, tensors, outs)
        except BaseException as error:
            self._tell_peers(error)
            raise

    def scatter_banded(self, kind: Kind, tensors: tuple[torch.Tensor, ...], band: Band) -> Sequence[torch.Tensor]:
        """A scatter of a part of each rank's heads: of the first tensor ``band``, of the others the heads that it needs."""
        with self._told():
            heads = [tensor.shape[2] if tensor.dim() == 4 else 0 for tensor in tensors]
            bands = tuple(proportional_band(band, heads[0], count) for count in heads)
            if self._num_ranks == 1:
                parts = [band_of_all(count, 1, None, own) for count, own in zip(heads, bands, strict=True)]
                tensors = tuple(x.narrow(2, *starts, *counts) for x, (starts, counts) in zip(tensors, parts, strict=True))
                kind = kind._replace(head_splits=None)
        return self.run(kind if self._num_ranks == 1 else kind._replace(bands=bands), tensors)

    def gather_banded(self, kind: Kind, x: torch.Tensor, band: Band, out: torch.Tensor) -> torch.Tensor:
        """A gather of a part of each rank's heads into their places in ``out``: at once, or by way of a lease."""
        with self._told():
            check_input(out, self._device)
            if x.dim() != 4 or out.dim() != 4 or out.dtype != x.dtype:
                raise UlyssesInputError(UlyssesErrorCode.BAD_SHAPE, "x and out must be [B, S, H, D], of one dtype")
            starts, counts = band_of_all(out.shape[2], self._num_ranks, kind.head_splits, band)
            if self._landings((out,)) is None:
                wanted = self.plan(kind._replace(head_splits=counts), x.shape, x.dtype).output_shape
                if (*out.shape[:2], out.shape[3]) != (*wanted[:2], wanted[3]):
                    raise UlyssesInputError(UlyssesErrorCode.BAD_SHAPE, f"out must be {list(wanted)} but for its heads")
        if self._landings((out,)) is not None:
            return self.run(kind._replace(tag=None, bands=(band,)), (x,), (out,))[0]
        (compact,) = self.run(kind._replace(head_splits=counts), (x,))
        for start, count, at in zip(starts, counts, accumulate(counts, initial=0), strict=False):
            out.narrow(2, start, count).copy_(compact.narrow(2, at, count))
        return out

    def send(self, x: torch.Tensor, kind: Kind) -> None:
        """Begin one tagged exchange."""
        assert kind.tag is not None
        try:
            self._membership.ensure_sound()
            self._refuse_pending(kind.tag)
            if len(self._pending) >= MAX_UNSETTLED:
                raise UlyssesInputError(
                    UlyssesErrorCode.BAD_TAG, f"{MAX_UNSETTLED} tags are under way: wait for some of them first"
                )
            check_input(x, self._device)
            known = self._find(kind, (x,), None, None)
            shard, replicated = x, None
            if kind.replicated and self._num_ranks > 1:
                plan = known.site.plans[0]
                shard, replicated = x.narrow(1, 0, plan.input_rows), self._own_replicated(plan, x)
            with self._ranges.around(known.range_name):
                self.exchange.send(known.site, (shard,))
            self.counters.count(known.sent_bytes, waits=0)
            self._pending[kind.tag] = Pending(known.site, replicated)
        except BaseException as error:
            self._tell_peers(error)
            raise

    def wait(self, names: tuple[str, ...]) -> tuple[torch.Tensor, ...]:
        """The results of those that were begun, one wait for all."""
        try:
            self._membership.ensure_sound()
            if not names or len(set(names)) != len(names) or not all(name in self._pending for name in names):
                raise UlyssesInputError(
                    UlyssesErrorCode.BAD_TAG, f"wait wants distinct tags under way, got {names}, has {(*self._pending,)}"
                )
            pending = [self._pending.pop(name) for name in names]
            self.counters.waits += 1
            with self._ranges.around("ulysses wait"):
                received = tuple(self.exchange.receive([each.site for each in pending], None))
            for each, got in zip(pending, received, strict=True):
                if each.replicated is not None:
                    _behind(each.site.plans[0], got).copy_(each.replicated)
            return received
        except BaseException as error:
            self._tell_peers(error)
            raise

    def plan(
        self,
        kind: Kind,
        shape: Sequence[int],
        dtype: torch.dtype,
        *,
        heads: HeadShares | None = None,
        band: Band | None = None,
        all_heads: int | None = None,
    ) -> ExchangePlan:
        """The plan of one tensor. Raises UlyssesInputError (BAD_SHAPE)."""
        heads = heads if heads is not None else HeadShares(kind.head_splits)
        return plan_exchange(
            kind.direction,
            shape,
            rank=self._rank,
            num_ranks=self._num_ranks,
            dtype=str(dtype).removeprefix("torch."),
            item_bytes=dtype.itemsize,
            seq_splits=kind.seq_splits,
            head_splits=heads.splits,
            head_starts=heads.starts,
            band=band,
            all_heads=all_heads,
            replicated=kind.replicated,
        )

    def check(self) -> None:
        """Raise the group's fault, if there is one."""
        try:
            self._membership.check()
        except UlyssesPeerError as error:
            self._tell_peers(error)
            raise

    def forget(self, exchange: Exchange[Any]) -> None:
        """Let go of all sites and of the backend; ``exchange`` stands in for it."""
        self._sites.clear()
        self._pending.clear()
        self.exchange = exchange

    def _find(
        self,
        kind: Kind,
        tensors: tuple[torch.Tensor, ...],
        out_heads: int | None,
        landings: tuple[Any, ...] | None,
    ) -> Known:
        """The call's site; ``out_heads`` are those of the tensor that a gathered band goes to."""
        key = (kind, landings, *[(tensor.shape, tensor.dtype) for tensor in tensors])
        known = self._sites.get(key)
        if known is None:
            plans = self._plans(kind, tensors, out_heads)
            self._make_room(landings is not None)
            site = self.exchange.prepare(plans, kind.tag, fused=kind.fused, landings=landings)
            sent = sum(plan.sent_bytes(self._rank) for plan in plans)
            known = self._sites[key] = Known(site, sent, f"ulysses {kind.direction} {plans[0].seq}x{plans[0].heads}")
        return known

    def _plans(self, kind: Kind, tensors: tuple[torch.Tensor, ...], out_heads: int | None) -> tuple[ExchangePlan, ...]:
        if any(tensor.dim() != 4 for tensor in tensors):
            return tuple(self.plan(kind, tensor.shape, tensor.dtype) for tensor in tensors)  # raises
        shares: Sequence[HeadShares] = [HeadShares(kind.head_splits)] * len(tensors)
        if kind.direction is Direction.SCATTER and len(tensors) > 1:
            shares = head_shares([tensor.shape[2] for tensor in tensors], self._num_ranks, kind.head_splits)
        bands: Sequence[Band | None] = kind.bands or [None] * len(tensors)
        plans = [
            self.plan(kind, tensor.shape, tensor.dtype, heads=heads, band=band, all_heads=None if band is None else out_heads)
            for tensor, heads, band in zip(tensors, shares, bands, strict=True)
        ]
        if kind.replicated and kind.direction is Direction.GATHER:
            if len(plans) > 1:
                raise UlyssesInputError(UlyssesErrorCode.BAD_ARGUMENT, "replicated rows are gathered of one tensor a call")
            plans.append(plans[0].replica())
        return tuple(plans)

    def _with_replicated(
        self, kind: Kind, known: Known, tensors: tuple[torch.Tensor, ...], outs: Sequence[torch.Tensor] | None
    ) -> Sequence[torch.Tensor]:
        """Rows that all ranks hold, behind the shard: a scatter takes its heads of them, a gather brings all heads together."""
        plans = known.site.plans
        if self._num_ranks == 1:
            return self.exchange.exchange(known.site, tensors, outs)
        shards = tuple(x.narrow(1, 0, plan.input_rows) for x, plan in zip(tensors, plans, strict=False))
        if kind.direction is Direction.GATHER:
            tail = tensors[0].narrow(1, plans[0].input_rows, kind.replicated)
            return self.exchange.exchange(known.site, (*shards, tail), outs)
        received = self.exchange.exchange(known.site, shards, outs)
        for x, got, plan in zip(tensors, received, plans, strict=True):
            _behind(plan, got).copy_(self._own_replicated(plan, x))
        return received

    def _own_replicated(self, plan: ExchangePlan, x: torch.Tensor) -> torch.Tensor:
        """This rank's heads of the rows behind the shard."""
        tail = x.narrow(1, plan.input_rows, plan.replicated)
        return tail.narrow(2, plan.head_starts[self._rank], plan.head_splits[self._rank])

    def _landings(self, outs: Sequence[torch.Tensor]) -> tuple[Any, ...] | None:
        """Where peers write straight into ``outs``, if all of them lie in the arena."""
        landings = tuple(self.exchange.landing_of(out) for out in outs)
        return None if any(landing is None for landing in landings) else landings

    def _make_room(self, lands: bool) -> None:
        """Forget the sites that own nothing in the window when there are too many of them."""
        found = [key for key in self._sites if key[0].tag is None and (key[1] is not None) == lands]
        if len(found) >= (_MAX_LANDING_SITES if lands else _MAX_UNTAGGED_SITES):
            for key in found:
                del self._sites[key]

    def _refuse_pending(self, tag: str | None) -> None:
        if tag in self._pending:
            raise UlyssesInputError(UlyssesErrorCode.BAD_TAG, f"tag {tag!r} is under way: wait for it first")

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Errors inside are told to the peers."""
        try:
            self._membership.ensure_sound()
            yield
        except BaseException as error:
            self._tell_peers(error)
            raise

    def _tell_peers(self, error: BaseException) -> None:
        """An input error is a refusal, which is harmless if all ranks make it; anything unforeseen breaks the group."""
        if isinstance(error, UlyssesInputError):
            self._membership.refuse(str(error))
        elif isinstance(error, UlyssesPeerError):
            self.counters.timeouts = int(error.code is UlyssesErrorCode.PEER_TIMED_OUT)
        elif not isinstance(error, UlyssesError):
            self._membership.abort(f"{type(error).__name__} inside a call: {error}")


def _behind(plan: ExchangePlan, result: torch.Tensor) -> torch.Tensor:
    """Where a scatter leaves room for rows that every rank holds."""
    return result.narrow(1, plan.seq, plan.replicated)
