"""The face: results, leases, refusals and life, with ranks as threads."""

from __future__ import annotations

import gc
import math
import os
import warnings
from typing import Any

import pytest
import torch
from tests.unit.ulysses_loopback import bits, numbered, on_every_rank, on_every_seat, own_shard

from ithaka.comm_ext.ulysses.communicator import UlyssesCommunicator
from ithaka.comm_ext.ulysses.errors import (
    UlyssesClosedError,
    UlyssesErrorCode,
    UlyssesInputError,
    UlyssesPeerError,
)
from ithaka.comm_ext.ulysses.group import GroupDescriptors, RankGroup
from ithaka.comm_ext.ulysses.host import HostExchange, HostSite
from ithaka.comm_ext.ulysses.plan import Direction, ExchangePlan, balanced_splits
from ithaka.comm_ext.ulysses.reference import gather_heads_reference, scatter_heads_reference

DTYPES = [
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.int8,
    torch.uint8,
    torch.int64,
    torch.bool,
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_goes_there_and_back(dtype: torch.dtype) -> None:
    whole = numbered(1, 6, 4, 16, dtype)
    scattered = scatter_heads_reference(torch.split(whole, [3, 3], dim=1), (2, 2))

    def body(communicator: UlyssesCommunicator) -> None:
        x = own_shard(communicator.rank, (3, 3), whole, 1)
        y = communicator.scatter_heads(x)
        assert y.dtype is dtype
        assert bits(y) == bits(scattered[communicator.rank])
        assert bits(communicator.scatter_heads(x, tag="lease")) == bits(y)
        assert bits(communicator.gather_heads(y)) == bits(x)

    assert on_every_rank(2, body) == [None, None]


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 4, 5, 8])
@pytest.mark.parametrize("batch", [1, 2])
def test_uneven_heads_and_tokens(num_ranks: int, batch: int) -> None:
    seq, heads = balanced_splits(65, num_ranks), balanced_splits(12, num_ranks)
    whole = numbered(batch, 65, 12, 16)
    scattered = scatter_heads_reference(torch.split(whole, list(seq), dim=1), heads)
    gathered = gather_heads_reference(scattered, seq)

    def body(communicator: UlyssesCommunicator) -> None:
        rank = communicator.rank
        for _ in range(4):
            y = communicator.scatter_heads(own_shard(rank, seq, whole, 1), seq_splits=seq, head_splits=list(heads))
            assert torch.equal(y, scattered[rank])
            assert torch.equal(communicator.gather_heads(y, seq_splits=list(seq), head_splits=heads), gathered[rank])

    assert on_every_rank(num_ranks, body) == [None] * num_ranks


def test_strided_inputs_and_outputs() -> None:
    whole = numbered(2, 8, 4, 6)

    def body(communicator: UlyssesCommunicator) -> None:
        rank = communicator.rank
        x = own_shard(rank, (4, 4), whole, 1)
        expected = scatter_heads_reference(torch.split(whole, [4, 4], dim=1), (2, 2))[rank]
        views = [
            x.transpose(1, 2).contiguous().transpose(1, 2),
            torch.cat((x, x), dim=3)[..., :6],
            x.flip(1).contiguous().flip(1),
            torch.stack((x, x), dim=4)[..., 0],
        ]
        for view in views:
            assert torch.equal(communicator.scatter_heads(view), expected)
        ones = torch.ones(1, 1, 1, 6).expand(2, 4, 4, 6)
        assert torch.equal(communicator.scatter_heads(ones), torch.ones(2, 8, 2, 6))
        wide = torch.full((2, 8, 2, 12), math.nan)
        assert communicator.scatter_heads(x, out=wide[..., ::2]).data_ptr() == wide.data_ptr()
        assert torch.equal(wide[..., ::2], expected)
        assert wide[..., 1::2].isnan().all()

    assert on_every_rank(2, body) == [None, None]


def test_qkv_together_with_fewer_key_heads() -> None:
    q, k, v = numbered(1, 8, 12, 4), numbered(1, 8, 4, 4) + 1000, numbered(1, 8, 4, 8) + 2000
    splits = (6, 3, 3)

    def body(communicator: UlyssesCommunicator) -> None:
        rank = communicator.rank
        seq = (3, 3, 2)
        shards = [own_shard(rank, seq, tensor, 1) for tensor in (q, k, v)]
        for tag in ("qkv", None):
            received = communicator.scatter_qkv(*shards, tag=tag, seq_splits=seq, head_splits=splits)
            for got, whole, heads in zip(received, (q, k, v), (splits, (2, 1, 1), (2, 1, 1)), strict=True):
                assert torch.equal(got, own_shard(rank, heads, whole, 2))
        with pytest.raises(UlyssesInputError, match="cut one of 4 key heads"):
            communicator.scatter_qkv(*shards, seq_splits=seq, head_splits=(7, 4, 1))
        communicator.check()

    assert on_every_rank(3, body) == [None] * 3


def test_tagged_sends_with_one_wait_in_any_order() -> None:
    whole = {name: numbered(1, 8, 4, 4) + 100 * index for index, name in enumerate("vqk")}

    def body(communicator: UlyssesCommunicator) -> None:
        rank = communicator.rank
        for _ in range(10):
            for name in "vqk":
                x = own_shard(rank, (4, 4), whole[name], 1).clone()
                communicator.scatter_heads_async(x, name)
                x.fill_(-1)  # free as soon as the call returned
            between = communicator.scatter_heads(own_shard(rank, (4, 4), whole["q"], 1))
            assert torch.equal(between, own_shard(rank, (2, 2), whole["q"], 2))
            q, v = communicator.wait(["q", "v"])
            (k,) = communicator.wait("k")
            for name, got in (("q", q), ("k", k), ("v", v)):
                assert torch.equal(got, own_shard(rank, (2, 2), whole[name], 2))

    assert on_every_rank(2, body) == [None, None]


def test_a_lease_is_good_until_the_second_next_call_and_an_overrun_is_an_error() -> None:
    whole = numbered(1, 4, 2, 4)

    def body(communicator: UlyssesCommunicator) -> None:
        x = own_shard(communicator.rank, (2, 2), whole, 1)
        expected = own_shard(communicator.rank, (1, 1), whole, 2)
        for number in range(20):  # holding the last result over the next call is fine
            kept = communicator.scatter_heads(x + number, tag="a")
            assert torch.equal(kept, expected + number)
        first = communicator.scatter_heads(x, tag="b").transpose(1, 2)
        second = communicator.scatter_heads(x + 1, tag="b")
        communicator.scatter_heads(x + 7, tag="c")
        communicator.scatter_heads(x + 8)
        assert torch.equal(first.transpose(1, 2), expected)
        with pytest.raises(UlyssesInputError) as caught:
            communicator.scatter_heads(x + 2, tag="b")
        assert caught.value.code is UlyssesErrorCode.LEASE_OVERRUN
        assert torch.equal(first.transpose(1, 2), expected)
        assert torch.equal(second, expected + 1)
        del first, second
        assert torch.equal(communicator.scatter_heads(x + 3, tag="b"), expected + 3)

    assert on_every_rank(2, body) == [None, None]


def test_whoever_held_a_slots_bytes_before_they_were_lent_holds_no_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    prepare = HostExchange.prepare
    others: list[memoryview] = []

    def watched(self: HostExchange, plans: tuple[ExchangePlan, ...], tag: str | None, **options: Any) -> HostSite:
        site = prepare(self, plans, tag, **options)
        others.extend(slot.lease for slot in site.slots)
        return site

    monkeypatch.setattr(HostExchange, "prepare", watched)

    def body(communicator: UlyssesCommunicator) -> None:
        x = torch.ones(1, 2, 2, 4)
        for _ in range(4):
            communicator.scatter_heads(x, tag="a")
        held = communicator.scatter_heads(x, tag="a")[:, 1:]
        communicator.scatter_heads(x, tag="a")
        with pytest.raises(UlyssesInputError) as caught:
            communicator.scatter_heads(x, tag="a")
        assert caught.value.code is UlyssesErrorCode.LEASE_OVERRUN
        del held
        communicator.scatter_heads(x, tag="a")

    assert on_every_rank(2, body) == [None, None]
    assert len(others) == 6


def test_leases_outlive_the_communicator() -> None:
    def body(seat: RankGroup) -> torch.Tensor:
        with UlyssesCommunicator(seat, max_bytes=1 << 20) as communicator:
            return communicator.scatter_heads(torch.full((1, 2, 2, 4), float(seat.rank)), tag="a")

    for lease in on_every_seat(2, body):
        assert isinstance(lease, torch.Tensor)
        assert lease[0, :, 0, 0].tolist() == [0, 0, 1, 1]


def test_works_inside_and_outside_of_inference_mode() -> None:
    def body(communicator: UlyssesCommunicator) -> None:
        x = torch.ones(1, 2, 2, 4)
        for inside in (True, False, True):
            with torch.inference_mode(inside):
                communicator.scatter_heads(x, tag="a").add_(1)
                communicator.scatter_heads(x).add_(1)

    assert on_every_rank(2, body) == [None, None]


def test_endless_new_shapes_do_not_eat_the_window() -> None:
    def body(communicator: UlyssesCommunicator) -> None:
        for seq in range(1, 700):
            x = torch.full((1, seq, 2, 4), float(communicator.rank))
            assert communicator.scatter_heads(x).shape == (1, 2 * seq, 1, 4)
        assert communicator.describe()["reserved_bytes"] < 4 * 2 * (2 * 700 * 4 * 4)

    assert on_every_rank(2, body, max_bytes=1 << 18) == [None, None]


def test_close_twice_and_use_after_close() -> None:
    def body(seat: RankGroup) -> None:
        communicator = UlyssesCommunicator(seat, max_bytes=1 << 20)
        communicator.close()
        communicator.close()
        communicator.abort("too late")
        x = torch.ones(1, 4, 2, 4)
        for call in (
            lambda: communicator.scatter_heads(x),
            lambda: communicator.gather_heads(x),
            lambda: communicator.scatter_qkv(x, x, x),
            lambda: communicator.scatter_heads_async(x, "a"),
            lambda: communicator.wait("a"),
            communicator.check,
            communicator.describe,
        ):
            with pytest.raises(UlyssesClosedError):
                call()

    assert on_every_seat(2, body) == [None, None]
    assert on_every_seat(1, body) == [None]


def test_leaving_by_an_exception_tells_the_others() -> None:
    def body(seat: RankGroup) -> None:
        with UlyssesCommunicator(seat, max_bytes=1 << 20, timeout_s=60) as communicator:
            if seat.rank == 1:
                raise KeyError("lost")
            communicator.scatter_heads(torch.ones(1, 4, 2, 4))

    first, second = on_every_seat(2, body)
    assert isinstance(first, UlyssesPeerError)
    assert "rank 1 gave up: KeyError: 'lost'" in str(first)
    assert isinstance(second, KeyError)


def test_an_unforeseen_error_inside_a_call_breaks_the_group(monkeypatch: pytest.MonkeyPatch) -> None:
    def body(communicator: UlyssesCommunicator) -> None:
        if communicator.rank == 1:
            monkeypatch.setattr(communicator._exchange, "send", lambda site, tensors: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                communicator.scatter_heads(torch.ones(1, 4, 2, 4))
        with pytest.raises(UlyssesPeerError, match="rank 1 gave up: ZeroDivisionError inside a call"):
            communicator.scatter_heads(torch.ones(1, 4, 2, 4))

    assert on_every_rank(2, body) == [None, None]


def test_one_rank_closing_early_fails_the_other() -> None:
    def body(communicator: UlyssesCommunicator) -> None:
        if communicator.rank == 0:
            with pytest.raises(UlyssesPeerError) as caught:
                communicator.scatter_heads(torch.ones(1, 4, 2, 4))
            assert (caught.value.code, caught.value.rank) == (UlyssesErrorCode.PEER_CLOSED, 1)

    assert on_every_rank(2, body) == [None, None]


def test_a_forgotten_communicator_warns_and_lets_go() -> None:
    def body(seat: RankGroup) -> UlyssesCommunicator:
        return UlyssesCommunicator(seat, max_bytes=1 << 20)

    gc.collect()  # what earlier tests' tracebacks still hold
    before = set(os.listdir("/proc/self/fd"))
    outcomes = on_every_seat(2, body)
    assert all(isinstance(each, UlyssesCommunicator) for each in outcomes)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        outcomes.clear()
        gc.collect()
    assert {str(warning.message) for warning in caught if warning.category is ResourceWarning} == {
        f"unclosed UlyssesCommunicator on rank {rank}" for rank in range(2)
    }
    assert set(os.listdir("/proc/self/fd")) == before


def test_descriptors_and_mappings_are_flat_over_a_hundred_lives() -> None:
    def mappings() -> int:
        with open("/proc/self/maps") as maps:
            return sum("ithaka-ulysses" in line for line in maps)

    def body(communicator: UlyssesCommunicator) -> None:
        x = torch.ones(1, 4, 2, 4)
        communicator.scatter_qkv(x, x, x)
        communicator.scatter_heads(x)

    gc.collect()
    before = len(os.listdir("/proc/self/fd")), mappings()
    for _ in range(100):
        assert on_every_rank(2, body) == [None, None]
    assert (len(os.listdir("/proc/self/fd")), mappings()) == before


def test_descriptors_are_freed_when_joining_fails() -> None:
    gc.collect()
    before = set(os.listdir("/proc/self/fd"))
    descriptors = GroupDescriptors.create(2)
    with pytest.raises(UlyssesPeerError, match=r"rank 1 did not join within 0\.01 s"):
        UlyssesCommunicator(descriptors.seat(0), max_bytes=1 << 20, join_timeout_s=0.01)
    descriptors.close()
    assert set(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("group", [None, RankGroup.alone()])
def test_a_group_of_one_passes_through(group: RankGroup | None) -> None:
    with UlyssesCommunicator(group, max_bytes=1) as communicator:
        x = numbered(1, 4, 3, 4)
        assert communicator.scatter_heads(x) is x
        assert communicator.gather_heads(x, tag="a") is x
        assert communicator.scatter_qkv(x, x, x) == (x, x, x)
        communicator.scatter_heads_async(x, "v")
        assert communicator.wait("v") == (x,)
        out = communicator.allocate_output(Direction.SCATTER, x.shape, x.dtype)
        assert communicator.scatter_heads(x, out=out) is out
        assert torch.equal(out, x)
        assert communicator.scatter_heads(x, out=x) is x
        assert communicator.backend == "passthrough"
        assert communicator.describe()["calls"] == 6
        communicator.abort("enough")
        with pytest.raises(UlyssesPeerError, match="rank 0 gave up: enough"):
            communicator.check()


def test_what_it_says_of_itself() -> None:
    def body(communicator: UlyssesCommunicator) -> dict[str, Any]:
        x = communicator.input_buffer((1, 3, 2, 4), torch.float32).fill_(1)
        out = communicator.allocate_output(Direction.SCATTER, x.shape, x.dtype)
        communicator.scatter_heads(x, out=out)
        assert out.eq(1).all()
        with pytest.raises(UlyssesInputError):
            communicator.scatter_heads(x, head_splits=(3, 1))
        return communicator.describe()

    for rank, described in enumerate(on_every_rank(2, body, timeout_s=7.0, backend="auto")):
        assert isinstance(described, dict)
        described.pop("slept_waits")
        assert described.pop("fallback_reason")
        assert described == {
            "rank": rank,
            "num_ranks": 2,
            "backend": "host",
            "timeout_s": 7.0,
            "max_bytes": 1 << 20,
            "reserved_bytes": 256,
            "sites": 1,
            "calls": 2,
            "refusals": 1,
            "exchanges": 1,
            "sent_bytes": 48,  # three tokens' other head of four floats
            "waits": 1,
            "timeouts": 0,
        }
    for described in on_every_rank(2, lambda communicator: communicator.describe(), backend="host"):
        assert isinstance(described, dict)
        assert described["fallback_reason"] is None
