"""The communicator over the CUDA engine, all of it but the GPU: joining, leases, tags, faults, leaving; engine on the CPU."""

from __future__ import annotations

import gc
import os
import threading
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.unit.cuda_emulation import pretend_devices
from tests.unit.ulysses_loopback import on_every_rank, on_every_seat

from ithaka.comm_ext.ulysses import cuda_member
from ithaka.comm_ext.ulysses.communicator import UlyssesCommunicator
from ithaka.comm_ext.ulysses.cuda_binding import Placement
from ithaka.comm_ext.ulysses.cuda_calibration import Calibration, Launch, Row
from ithaka.comm_ext.ulysses.cuda_window import Slot, Window
from ithaka.comm_ext.ulysses.errors import UlyssesBackendError, UlyssesErrorCode, UlyssesInputError, UlyssesPeerError
from ithaka.comm_ext.ulysses.group import RankGroup
from ithaka.comm_ext.ulysses.peers import PeerWatch
from ithaka.comm_ext.ulysses.plan import ExchangePlan

LAUNCHES = {"sm": Launch(2, 1, 0.0), "hybrid": Launch(1, 1, 0.5), "copy_engine": Launch(0, 1, 1.0)}


def only(launch: Launch) -> Calibration:
    return Calibration("test", (Row(2, 1 << 60, launch),))


OPTIONS: dict[str, Any] = {"device": "cuda:0", "calibration": only(LAUNCHES["sm"])}


@pytest.fixture(autouse=True)
def on_the_cpu(monkeypatch: pytest.MonkeyPatch, engine: Path) -> None:
    pretend_devices(monkeypatch, engine)


def whole(seed: int, tokens: int, heads: int) -> torch.Tensor:
    return torch.randn(1, tokens, heads, 8, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("launch", LAUNCHES.values(), ids=LAUNCHES)
@pytest.mark.parametrize("num_ranks", [2, 3])
def test_scatter_and_gather_with_and_without_tags_and_outputs(num_ranks: int, launch: Launch) -> None:
    def body(communicator: UlyssesCommunicator) -> None:
        rank = communicator.rank
        for turn in range(6):
            data = whole(turn, 4 * num_ranks, 2 * num_ranks)
            x, wanted = data.chunk(num_ranks, 1)[rank], data.chunk(num_ranks, 2)[rank]
            for tag in (None, "t"):
                assert torch.equal(communicator.scatter_heads(x, tag=tag), wanted)
                assert torch.equal(communicator.gather_heads(wanted, tag=tag), x)
            out = torch.empty(wanted.shape)
            assert communicator.scatter_heads(x, out=out) is out
            assert torch.equal(out, wanted)
            odd = torch.empty(*wanted.shape[:3], 16)[..., ::2]
            assert torch.equal(communicator.scatter_heads(x, tag="t", out=odd), wanted)

    assert on_every_rank(num_ranks, body, device="cuda:0", calibration=only(launch)) == [None] * num_ranks


@pytest.mark.parametrize("launch", LAUNCHES.values(), ids=LAUNCHES)
def test_tagged_sends_wait_together(launch: Launch) -> None:
    def body(communicator: UlyssesCommunicator) -> None:
        for turn in range(5):
            parts = {name: whole(3 * turn + at, 8, 4) for at, name in enumerate("vqk")}
            for name, data in parts.items():
                communicator.scatter_heads_async(data.chunk(2, 1)[communicator.rank], name)
            for got, name in zip(communicator.wait(("q", "k", "v")), "qkv", strict=True):
                assert torch.equal(got, parts[name].chunk(2, 2)[communicator.rank])
            del got
            received = communicator.scatter_qkv(*(parts[name].chunk(2, 1)[communicator.rank] for name in "qkv"))
            for got, name in zip(received, "qkv", strict=True):
                assert torch.equal(got, parts[name].chunk(2, 2)[communicator.rank])
            del got, received

    assert on_every_rank(2, body, device="cuda:0", calibration=only(launch)) == [None] * 2


def test_a_held_lease_is_refused_and_outlives_the_close() -> None:
    def body(communicator: UlyssesCommunicator) -> list[torch.Tensor]:
        x = torch.ones(1, 4, 2, 8)
        held = [communicator.scatter_heads(x, tag="t") for _ in range(2)]
        with pytest.raises(UlyssesInputError) as caught:
            communicator.scatter_heads(x, tag="t")
        assert caught.value.code is UlyssesErrorCode.LEASE_OVERRUN
        del held[0]
        held.append(communicator.scatter_heads(x, tag="t")[:, 1:])
        return held

    outcomes = on_every_rank(2, body, **OPTIONS)
    gc.collect()
    for held in outcomes:
        assert isinstance(held, list), held
        assert all(torch.equal(lease, torch.ones_like(lease)) for lease in held)


def test_what_stands_on_a_slot_before_it_is_lent_is_no_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    """A storage's count is torch's, and others take and keep references too."""
    made = Window.slots
    others: list[torch.Tensor] = []

    def watched(self: Window, plans: Sequence[ExchangePlan], placement: Placement) -> tuple[Slot, ...]:
        slots = made(self, plans, placement)
        others.extend(slot.flat[:1] for slot in slots)
        return slots

    monkeypatch.setattr(Window, "slots", watched)

    def body(communicator: UlyssesCommunicator) -> None:
        x = torch.ones(1, 4, 2, 8)
        for _ in range(4):
            communicator.scatter_heads(x, tag="t")
        held = communicator.scatter_heads(x, tag="t")[:, 1:]
        communicator.scatter_heads(x, tag="t")
        with pytest.raises(UlyssesInputError) as caught:
            communicator.scatter_heads(x, tag="t")
        assert caught.value.code is UlyssesErrorCode.LEASE_OVERRUN
        del held
        communicator.scatter_heads(x, tag="t")

    assert on_every_rank(2, body, **OPTIONS) == [None] * 2
    assert len(others) == 6


def test_a_rank_that_stays_away_is_named_on_every_rank() -> None:
    def body(seat: RankGroup) -> UlyssesPeerError:
        with UlyssesCommunicator(seat, max_bytes=1 << 16, timeout_s=0.4, **OPTIONS) as communicator:
            x = torch.ones(1, 4, 3, 8)
            communicator.scatter_heads(x, tag="t")
            with pytest.raises(UlyssesPeerError) as caught:
                if communicator.rank != 1:
                    communicator.scatter_heads(x, tag="t")
                while True:
                    communicator.check()
            assert communicator.describe()["timeouts"] == 1
            return caught.value

    for fault in on_every_seat(3, body):
        assert isinstance(fault, UlyssesPeerError), fault
        assert (fault.code, fault.rank) == (UlyssesErrorCode.PEER_TIMED_OUT, 1)


def test_an_abort_reaches_a_rank_that_waits_on_the_device() -> None:
    waiting = threading.Event()

    def body(seat: RankGroup) -> UlyssesPeerError:
        with UlyssesCommunicator(seat, max_bytes=1 << 16, timeout_s=600, **OPTIONS) as communicator:
            x = torch.ones(1, 4, 2, 8)
            communicator.scatter_heads(x, tag="t")
            with pytest.raises(UlyssesPeerError) as caught:
                if communicator.rank == 0:
                    waiting.set()
                    communicator.scatter_heads(x, tag="t")
                else:
                    assert waiting.wait(20)
                    communicator.abort("on purpose")
                while True:
                    communicator.check()
            return caught.value

    for fault in on_every_seat(2, body):
        assert isinstance(fault, UlyssesPeerError), fault
        assert (fault.code, fault.rank) == (UlyssesErrorCode.PEER_ABORTED, 1)


def test_calls_that_differ_are_found() -> None:
    def body(seat: RankGroup) -> UlyssesPeerError:
        with UlyssesCommunicator(seat, max_bytes=1 << 16, timeout_s=20, **OPTIONS) as communicator:
            large, small = torch.ones(1, 8, 2, 8), torch.ones(1, 4, 2, 8)
            for x in (large, small):
                communicator.scatter_heads(x)
            with pytest.raises(UlyssesPeerError) as caught:
                communicator.scatter_heads(small if communicator.rank else large)
                while True:
                    communicator.check()
            return caught.value

    for fault in on_every_seat(2, body):
        assert isinstance(fault, UlyssesPeerError), fault
        assert fault.code is UlyssesErrorCode.PEER_DISAGREED


def test_one_rank_without_an_engine_keeps_all_from_joining(monkeypatch: pytest.MonkeyPatch, engine: Path) -> None:
    found = threading.local()
    monkeypatch.setattr(cuda_member, "find_library", lambda: engine if found.rank else None)

    def body(seat: RankGroup) -> None:
        found.rank = seat.rank
        UlyssesCommunicator(seat, max_bytes=1 << 16, **OPTIONS)

    for outcome in on_every_seat(2, body):
        assert isinstance(outcome, UlyssesBackendError), outcome
        assert "rank 0" in str(outcome)
        assert "python -m ithaka.comm_ext.build" in str(outcome)


def test_a_watch_that_fails_breaks_the_group_instead_of_ending_unseen(monkeypatch: pytest.MonkeyPatch) -> None:
    look, failed = PeerWatch.dead, threading.Event()

    def fail_once(self: PeerWatch) -> frozenset[int]:
        if threading.current_thread().name == "ulysses-watch" and not failed.is_set():
            failed.set()
            raise RuntimeError("no more descriptors")
        return look(self)

    def body(seat: RankGroup) -> UlyssesPeerError:
        with UlyssesCommunicator(seat, max_bytes=1 << 16, timeout_s=600, **OPTIONS) as communicator:
            monkeypatch.setattr(PeerWatch, "dead", fail_once)
            with pytest.raises(UlyssesPeerError) as caught:
                while True:
                    communicator.scatter_heads(torch.ones(1, 4, 2, 8))
            return caught.value

    for fault in on_every_seat(2, body):
        assert isinstance(fault, UlyssesPeerError), fault
        assert fault.code is UlyssesErrorCode.PEER_ABORTED
        assert "its watch failed: RuntimeError: no more descriptors" in str(fault)


def test_a_forgotten_communicator_warns_and_lets_go() -> None:
    def body(seat: RankGroup) -> UlyssesCommunicator:
        communicator = UlyssesCommunicator(seat, max_bytes=1 << 16, **OPTIONS)
        communicator.scatter_heads(torch.ones(1, 4, 2, 8), tag="t")
        return communicator

    gc.collect()
    before = set(os.listdir("/proc/self/fd"))
    outcomes = on_every_seat(2, body)
    assert all(isinstance(each, UlyssesCommunicator) for each in outcomes)
    assert sum(thread.name == "ulysses-watch" for thread in threading.enumerate()) == 2
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        outcomes.clear()
        gc.collect()
    assert sum(warning.category is ResourceWarning for warning in caught) == 2
    assert not any(thread.name == "ulysses-watch" for thread in threading.enumerate())
    assert set(os.listdir("/proc/self/fd")) == before


def test_what_it_counts() -> None:
    def body(communicator: UlyssesCommunicator) -> dict[str, Any]:
        x = torch.ones(1, 4, 2, 8)
        communicator.scatter_qkv(x, x, x)
        for tag in "ab":
            communicator.scatter_heads_async(x, tag)
        communicator.wait(("a", "b"))
        return communicator.describe()

    for described in on_every_rank(2, body, **OPTIONS):
        assert isinstance(described, dict), described
        one = 4 * 1 * 8 * 4  # four tokens of the other's head
        assert {name: described[name] for name in ("exchanges", "sent_bytes", "waits", "timeouts")} == {
            "exchanges": 3,
            "sent_bytes": 5 * one,
            "waits": 2,
            "timeouts": 0,
        }


def test_tables_that_differ_keep_all_from_joining() -> None:
    def body(seat: RankGroup) -> None:
        launch = LAUNCHES["sm" if seat.rank else "hybrid"]
        UlyssesCommunicator(seat, max_bytes=1 << 16, device="cuda:0", calibration=only(launch))

    for outcome in on_every_seat(2, body):
        assert isinstance(outcome, UlyssesBackendError), outcome
        assert "calibration" in str(outcome)
