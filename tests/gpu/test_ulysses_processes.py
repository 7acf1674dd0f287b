"""Ranks as processes: what loopback groups check, once more between devices; and every way to lose a peer.

With two GPUs each rank has its own. With one they share it, by turns of their contexts: slow, but enough to be killed in.
"""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from ithaka.comm_ext.ulysses.group import GroupDescriptors
from tests.process.ulysses_ranks import RankPool

pytestmark = pytest.mark.gpu
VICTIM = 1
SHORT_S = 2.0
SLACK_BYTES = 64 << 20
"""What a driver may keep of a device for itself between two looks."""
PHASES = ["between_calls", "in_a_call", "in_a_wait", "holding_a_lease", "in_a_replay"]
needs_two_devices = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")


@pytest.fixture(scope="module")
def zygote() -> Iterator[RankPool]:
    with RankPool("tests.gpu.process_scenarios") as pool:
        yield pool


@pytest.fixture
def pool(zygote: RankPool) -> Iterator[RankPool]:
    yield zygote
    zygote.end_ranks()


def free_bytes(pool: RankPool) -> list[int]:
    """What a fresh process finds on each device, after it has run a kernel there."""
    (rank,) = pool.start("probe", 1)
    found: list[int] = rank.result()["free_bytes"]
    rank.await_end()
    return found


@pytest.fixture(scope="module")
def devices_stay_free(zygote: RankPool) -> Iterator[None]:
    """After all lost ranks every device runs a fresh process's kernel and has its memory back. Nothing else may use them."""
    free_at_first = free_bytes(zygote)
    yield
    zygote.end_ranks()
    for was, now in zip(free_at_first, free_bytes(zygote), strict=True):
        assert was - now < SLACK_BYTES


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize(("phase", "engine"), [*((phase, "sm") for phase in PHASES), ("in_a_replay", "hybrid")])
def test_a_lost_rank_is_named_and_no_device_stays_busy(
    pool: RankPool, devices_stay_free: None, phase: str, engine: str, how: signal.Signals
) -> None:
    # A killed rank is seen by its process: results come within 20 s, the timeout is 30. A stopped one by the timeout.
    timeout_s = 30.0 if how is signal.SIGKILL else SHORT_S
    ranks = pool.start("lost", 2, victim=VICTIM, phase=phase, engine=engine, timeout_s=timeout_s, join_timeout_s=20.0)
    ranks[VICTIM].reached(phase)
    if phase == "in_a_wait":
        ranks[0].reached("ready")
    ranks[VICTIM].signal(how)
    if phase == "in_a_wait":
        ranks[0].go()
    result = ranks[0].result()
    assert result["code"] == ("ulysses_peer_died" if how is signal.SIGKILL else "ulysses_peer_timed_out")
    assert (result["rank"], result["again"], result["device_works"]) == (VICTIM, True, True)
    ranks[0].await_end()
    if how is signal.SIGSTOP:
        ranks[VICTIM].signal(signal.SIGCONT)
        ranks[VICTIM].go()
        result = ranks[VICTIM].result()
        assert (result["code"], result["rank"]) == ("ulysses_peer_timed_out", VICTIM)
        assert result["device_works"]
        ranks[VICTIM].await_end()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_rank_lost_before_it_joins(pool: RankPool, devices_stay_free: None, how: signal.Signals) -> None:
    ranks = pool.start("lost", 2, victim=VICTIM, phase="before_join", timeout_s=SHORT_S, join_timeout_s=2.0)
    ranks[VICTIM].reached("before_join")
    ranks[VICTIM].signal(how)
    result = ranks[0].result()
    assert (result["code"], result["rank"]) == ("ulysses_peer_timed_out", VICTIM)
    assert "did not join" in result["text"]
    assert result["device_works"]
    ranks[0].await_end()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("phase", ["before_close", "closing"])
def test_closing_ends_whatever_becomes_of_a_peer(
    pool: RankPool, devices_stay_free: None, phase: str, how: signal.Signals
) -> None:
    timeout_s = 30.0 if how is signal.SIGKILL else SHORT_S
    ranks = pool.start("lost", 2, victim=VICTIM, phase=phase, timeout_s=timeout_s, join_timeout_s=20.0)
    ranks[VICTIM].reached(phase)
    ranks[VICTIM].signal(how)
    assert ranks[0].result() == {"closed": True, "device_works": True}
    ranks[0].await_end()


@needs_two_devices
@pytest.mark.parametrize("engine", ["sm", "hybrid", "copy_engine"])
def test_everything_between_two_devices(pool: RankPool, engine: str) -> None:
    """Here recordings fork: copies beside kernels, on devices that share no queue."""
    ranks = pool.start("all_checks", 2, engine=engine, calls=1000)
    assert [rank.result() for rank in ranks] == [{"good": True}] * 2


@needs_two_devices
@pytest.mark.parametrize("backend", ["sm", "copy_engine", "nccl"])
def test_parts_between_two_devices(pool: RankPool, backend: str) -> None:
    ranks = pool.start("parts", 2, backend=backend, engine="copy_engine" if backend == "copy_engine" else "sm")
    assert [rank.result() for rank in ranks] == [{"backend": backend}] * 2


@needs_two_devices
def test_with_expandable_segments(pool: RankPool) -> None:
    ranks = pool.start("all_checks", 2, engine="sm", calls=60, allocator="expandable_segments:True")
    assert [rank.result() for rank in ranks] == [{"good": True}] * 2


@needs_two_devices
@pytest.mark.parametrize("visible", [("0,1", "1,0"), ("1,0", "0,1")], ids="/".join)
def test_ranks_that_number_the_devices_differently(pool: RankPool, visible: tuple[str, str]) -> None:
    ranks = pool.start("permuted", 2, visible=visible)
    assert [rank.result() for rank in ranks] == [{"good": True}] * 2


def test_two_communicators_of_the_same_ranks(pool: RankPool) -> None:
    ranks = pool.start("two_communicators", 2)
    descriptors = GroupDescriptors.create(2)
    for rank in ranks:
        socket.send_fds(rank.control, [b"pair"], descriptors.fds)
    descriptors.close()
    assert [rank.result() for rank in ranks] == [{"wrong": [0, 0]}] * 2


def test_footprint_is_flat_over_a_hundred_lives(pool: RankPool) -> None:
    lives = 100
    ranks = pool.start("many_lives", 2, lives=lives)
    for number in range(lives):
        descriptors = GroupDescriptors.create(2)
        for rank in ranks:
            rank.reached(f"life {number}")
            socket.send_fds(rank.control, [b"live"], descriptors.fds)
        descriptors.close()
    results: list[dict[str, Any]] = [rank.result() for rank in ranks]
    for result in results:
        descriptors_few, threads_few, free_few = result["after_few"]
        descriptors_all, threads_all, free_all = result["after_all"]
        assert (descriptors_all, threads_all) == (descriptors_few, threads_few)
        assert free_few - free_all < SLACK_BYTES  # one forgotten arena is as much
