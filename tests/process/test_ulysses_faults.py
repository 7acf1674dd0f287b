"""A rank that is killed or stopped, at every step of a communicator's life: the others get the error that names it."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any

import pytest
from tests.process.ulysses_ranks import RankPool

CALL_PHASES = ["before_send", "between_copies", "before_post", "after_post", "after_settle", "after_receive"]
VICTIM = 1
SHORT_S = 1.0


@pytest.fixture(scope="module")
def zygote() -> Iterator[RankPool]:
    with RankPool() as pool:
        yield pool


@pytest.fixture
def pool(zygote: RankPool) -> Iterator[RankPool]:
    yield zygote
    zygote.end_ranks()


def held(phase: str, call: int, *ranks: int) -> dict[str, Any]:
    return {"ranks": list(ranks or (VICTIM,)), "phase": phase, "call": call}


@pytest.mark.parametrize("phase", ["joined", *CALL_PHASES])
def test_a_killed_rank_is_named_without_waiting_for_the_timeout(pool: RankPool, phase: str) -> None:
    # The timeout is 30 s and results must come within 20: only the look at the process can have told.
    ranks = pool.start("exchange_loop", 3, held=held(phase, 0 if phase == "joined" else 3))
    ranks[VICTIM].reached(phase)
    ranks[VICTIM].signal(signal.SIGKILL)
    for rank in (ranks[0], ranks[2]):
        result = rank.result()
        assert (result["code"], result["rank"]) == ("ulysses_peer_died", VICTIM)
        assert result["again"]
        assert result["good"] >= (0 if phase == "joined" else 2)
        rank.await_end()


@pytest.mark.parametrize("phase", ["joined", *CALL_PHASES])
def test_a_stopped_rank_is_named_and_told_when_it_goes_on(pool: RankPool, phase: str) -> None:
    call = 0 if phase == "joined" else 3
    ranks = pool.start("exchange_loop", 3, held=held(phase, call), timeout_s=SHORT_S)
    ranks[VICTIM].reached(phase)
    ranks[VICTIM].signal(signal.SIGSTOP)
    for rank in (ranks[0], ranks[2]):
        result = rank.result()
        assert (result["code"], result["rank"]) == ("ulysses_peer_timed_out", VICTIM)
        assert "stopped" in result["text"]
        assert result["again"]
        rank.await_end()
    ranks[VICTIM].signal(signal.SIGCONT)
    ranks[VICTIM].go()
    result = ranks[VICTIM].result()
    assert (result["code"], result["rank"]) == ("ulysses_peer_timed_out", VICTIM)
    assert result["again"]


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_rank_lost_while_it_waits_for_another(pool: RankPool, how: signal.Signals) -> None:
    timeout_s = 30.0 if how is signal.SIGKILL else SHORT_S
    ranks = pool.start("exchange_loop", 2, held_each=[held("before_send", 3, 0), held("in_wait", 3, 1)], timeout_s=timeout_s)
    ranks[0].reached("before_send")
    ranks[1].reached("in_wait")
    ranks[1].signal(how)
    ranks[0].go()
    result = ranks[0].result()
    assert result["code"] == ("ulysses_peer_died" if how is signal.SIGKILL else "ulysses_peer_timed_out")
    assert result["rank"] == 1


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_two_lost_ranks_leave_one_verdict(pool: RankPool, how: signal.Signals) -> None:
    timeout_s = 30.0 if how is signal.SIGKILL else SHORT_S
    ranks = pool.start("exchange_loop", 4, held=held("before_post", 2, 1, 3), timeout_s=timeout_s)
    for rank in (ranks[1], ranks[3]):
        rank.reached("before_post")
        rank.signal(how)
    first, second = ranks[0].result(), ranks[2].result()
    assert first == second
    assert first["rank"] in (1, 3)
    assert first["again"]


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_rank_lost_before_it_joins(pool: RankPool, how: signal.Signals) -> None:
    ranks = pool.start("exchange_loop", 3, held=held("before_join", 0), join_s=SHORT_S)
    ranks[VICTIM].reached("before_join")
    ranks[VICTIM].signal(how)
    for rank in (ranks[0], ranks[2]):
        result = rank.result()
        assert (result["code"], result["rank"]) == ("ulysses_peer_timed_out", VICTIM)
        assert "did not join" in result["text"]


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_rank_lost_while_joining(pool: RankPool, how: signal.Signals) -> None:
    timeout_s = 30.0 if how is signal.SIGKILL else SHORT_S
    ranks = pool.start("exchange_loop", 3, held=held("joining", 0), timeout_s=timeout_s)
    ranks[VICTIM].reached("joining")
    ranks[VICTIM].signal(how)
    for rank in (ranks[0], ranks[2]):
        result = rank.result()
        assert result["code"] == ("ulysses_peer_died" if how is signal.SIGKILL else "ulysses_peer_timed_out")
        assert result["rank"] == VICTIM


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("phase", ["before_close", "closing"])
def test_closing_ends_whatever_becomes_of_a_peer(pool: RankPool, phase: str, how: signal.Signals) -> None:
    # A killed peer is not waited for (results come within 20 s, the timeout is 30), a stopped one for the timeout.
    timeout_s = 30.0 if how is signal.SIGKILL else SHORT_S
    ranks = pool.start("exchange_loop", 3, held=held(phase, 6), timeout_s=timeout_s)
    ranks[VICTIM].reached(phase)
    ranks[VICTIM].signal(how)
    for rank in (ranks[0], ranks[2]):
        assert rank.result() == {"good": 6}
        rank.await_end()


@pytest.mark.parametrize("leaves", [True, False])
def test_the_check_between_calls_names_who_is_gone(pool: RankPool, leaves: bool) -> None:
    ranks = pool.start("idle", 3, leaves=leaves)
    for rank in (ranks[0], ranks[2]):
        rank.reached("idle")
    if leaves:
        ranks[VICTIM].await_end()
    else:
        ranks[VICTIM].reached("idle")
        ranks[VICTIM].signal(signal.SIGKILL)
    for rank in (ranks[0], ranks[2]):
        rank.go()
        result = rank.result()
        assert (result["code"], result["rank"]) == ("ulysses_peer_closed" if leaves else "ulysses_peer_died", VICTIM)
