"""The words that ranks meet by, the watch on processes, and the agreement on one fault."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.ulysses_loopback import on_every_seat

from ithaka.comm_ext.ulysses.control_block import MAX_RANKS, PAGE_BYTES, ControlBlock, RankState, control_bytes
from ithaka.comm_ext.ulysses.errors import UlyssesError, UlyssesErrorCode, UlyssesInputError, UlyssesPeerError
from ithaka.comm_ext.ulysses.group import GroupDescriptors, RankGroup
from ithaka.comm_ext.ulysses.rendezvous import Rendezvous

FACTS = {"max_bytes": 1}


@contextlib.contextmanager
def joined(num_ranks: int, *, timeout_s: float = 20.0) -> Iterator[list[Rendezvous]]:
    """Rendezvous of all ranks, driven by one thread: nobody is waited for unless a test says so."""
    descriptors = GroupDescriptors.create(num_ranks)
    ranks = [Rendezvous(descriptors.seat(rank), timeout_s=timeout_s) for rank in range(num_ranks)]
    descriptors.close()
    threads = [threading.Thread(target=rank.join, args=(FACTS,), kwargs={"refusal": None, "timeout_s": 20}) for rank in ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    try:
        yield ranks
    finally:
        for rank in ranks:
            rank.release()


@given(st.integers(1, MAX_RANKS))
def test_control_words_do_not_overlap(num_ranks: int) -> None:
    size = control_bytes(num_ranks)
    assert size % PAGE_BYTES == 0
    block = ControlBlock(memoryview(bytearray(size)), num_ranks)
    block.write_fault("fault" * 500)
    for rank in range(num_ranks):
        block.words[block.posted_word[rank]] = rank + 1
        block.words[block.state_word[rank]] = RankState.CLOSING
        for call in range(64):
            block.words[block.signature_word[rank] + call] = rank * 64 + call
        block.write_card(rank, f"card {rank} " * 500)
        block.write_reason(rank, f"reason {rank} " * 500)
    assert block.words[block.fault_word] == 0
    assert block.read_fault().startswith("faultfault")
    for rank in range(num_ranks):
        assert block.words[block.posted_word[rank]] == rank + 1
        assert block.words[block.state_word[rank]] == RankState.CLOSING
        assert [block.words[block.signature_word[rank] + call] for call in range(64)] == list(range(rank * 64, rank * 64 + 64))
        assert block.read_card(rank).startswith(f"card {rank} card {rank} ")
        assert block.read_reason(rank).startswith(f"reason {rank} reason {rank} ")


@pytest.mark.parametrize("num_ranks", [0, -1, MAX_RANKS + 1])
def test_impossible_group_sizes(num_ranks: int) -> None:
    with pytest.raises(UlyssesInputError, match="1 to 64 ranks"):
        GroupDescriptors.create(num_ranks)


def test_bad_seats() -> None:
    for rank, num_ranks, fds in ((2, 2, (3, 4)), (-1, 2, (3, 4)), (0, 2, (-1, 4)), (0, 2, (3,)), (0, 2, (3, 4, 5))):
        with pytest.raises(UlyssesInputError) as caught:
            RankGroup.from_fds(rank=rank, num_ranks=num_ranks, fds=fds)
        assert caught.value.code is UlyssesErrorCode.BAD_ARGUMENT
    assert RankGroup.alone() == RankGroup(0, 1, -1, -1)


def test_descriptors_are_not_inherited_unasked() -> None:
    descriptors = GroupDescriptors.create(2)
    assert not any(os.get_inheritable(fd) for fd in descriptors.fds)
    seat = descriptors.seat(1)
    assert not any(os.get_inheritable(fd) for fd in (seat.arena_fd, seat.verdict_fd))
    descriptors.close()
    for fd in (seat.arena_fd, seat.verdict_fd):
        os.close(fd)


def test_a_seat_of_a_differently_sized_group_is_refused() -> None:
    descriptors = GroupDescriptors.create(3)
    seat = descriptors.seat(0)
    rendezvous = Rendezvous(RankGroup(0, 2, seat.arena_fd, seat.verdict_fd), timeout_s=1)
    with pytest.raises(UlyssesInputError, match="made for 3 ranks, not 2"):
        rendezvous.join(FACTS, refusal=None, timeout_s=1)
    rendezvous.release()
    descriptors.close()


def test_a_group_serves_one_communicator() -> None:
    descriptors = GroupDescriptors.create(2)
    seats = [descriptors.seat(0), descriptors.seat(0)]
    for seat, expected in zip(seats, ("did not join", "already joined"), strict=True):
        rendezvous = Rendezvous(seat, timeout_s=1)
        with pytest.raises(UlyssesError, match=expected):
            rendezvous.join(FACTS, refusal=None, timeout_s=0.01)
        rendezvous.release()
    descriptors.close()


def test_facts_that_differ_fail_every_rank_alike() -> None:
    def join(seat: RankGroup) -> None:
        rendezvous = Rendezvous(seat, timeout_s=20)
        try:
            rendezvous.join({"max_bytes": 1 + (seat.rank == 2)}, refusal=None, timeout_s=20)
        finally:
            rendezvous.release()

    outcomes = on_every_seat(3, join)
    assert all(isinstance(error, UlyssesPeerError) for error in outcomes)
    assert len({str(error) for error in outcomes}) == 1
    assert {error.code for error in outcomes if isinstance(error, UlyssesPeerError)} == {UlyssesErrorCode.PEER_DISAGREED}


def test_calls_settle_when_all_have_posted() -> None:
    with joined(3) as ranks:
        for call in range(1, 200):
            assert {rank.post(7 * call) for rank in ranks} == {call}
            for rank in ranks:
                rank.settle(call)
        assert all(rank.num_unsettled == 0 for rank in ranks)


def test_a_differing_signature_breaks_all_and_stays_broken() -> None:
    with joined(3) as ranks:
        for rank, signature in zip(ranks, (5, 5, 6), strict=True):
            rank.post(signature)
        messages = set()
        for rank in ranks:
            for attempt in (lambda rank=rank: rank.settle(1), rank.ensure_sound, rank.check):
                with pytest.raises(UlyssesPeerError) as caught:
                    attempt()
                assert (caught.value.code, caught.value.rank) == (UlyssesErrorCode.PEER_DISAGREED, 2)
                messages.add(str(caught.value))
        assert len(messages) == 1


def test_an_earlier_unsettled_call_is_compared_too() -> None:
    with joined(2) as (first, second):
        first.post(5)
        second.post(6)
        for rank in (first, second):
            rank.post(7)
        with pytest.raises(UlyssesPeerError, match="call 1"):
            first.settle(2)


def test_refusals_that_all_make_are_harmless() -> None:
    with joined(2) as ranks:
        for _ in range(300):
            for rank in ranks:
                rank.refuse("too big")
        for rank in ranks:
            rank.post(5)
        for rank in ranks:
            rank.settle(301)
            rank.check()


@pytest.mark.parametrize("refusals", [1, 3, 64, 65, 200])
def test_a_lone_refusal_breaks_all_and_says_why(refusals: int) -> None:
    with joined(2) as (first, second):
        first.post(5)
        for _ in range(refusals):
            second.refuse("wrong dtype")
        with pytest.raises(UlyssesPeerError) as caught:
            first.settle(1)
        assert caught.value.rank == 1
        if refusals < 64:
            assert caught.value.code is UlyssesErrorCode.PEER_REFUSED
            assert "wrong dtype" in str(caught.value)
        with pytest.raises(UlyssesPeerError):
            second.ensure_sound()


def test_the_refuser_notices_by_itself() -> None:
    with joined(2) as (first, second):
        first.post(5)
        second.refuse("wrong dtype")
        first.post(6)
        second.post(6)
        with pytest.raises(UlyssesPeerError, match="rank 1 refused call 1: wrong dtype"):
            second.settle(2)


def test_timeout_names_the_rank_that_is_furthest_behind() -> None:
    with joined(4, timeout_s=0.05) as ranks:
        for rank in ranks[:3]:
            rank.post(5)
        ranks[0].post(5)
        with pytest.raises(UlyssesPeerError) as caught:
            ranks[0].settle(2)
        assert (caught.value.code, caught.value.rank) == (UlyssesErrorCode.PEER_TIMED_OUT, 3)
        assert f"pid {os.getpid()}, running" in str(caught.value)


def test_the_first_fault_wins() -> None:
    with joined(3) as ranks:
        ranks[1].abort("first")
        ranks[2].abort("second")
        for rank in ranks:
            with pytest.raises(UlyssesPeerError, match="rank 1 gave up: first"):
                rank.check()


def test_reporters_at_once_agree() -> None:
    with joined(4) as ranks:
        barrier = threading.Barrier(4)
        said: list[str] = []

        def report(rank: Rendezvous, number: int) -> None:
            barrier.wait()
            rank.abort(f"reason {number}")
            try:
                rank.ensure_sound()
            except UlyssesPeerError as error:
                said.append(str(error))

        threads = [threading.Thread(target=report, args=(rank, number)) for number, rank in enumerate(ranks)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(said) == 4
        assert len(set(said)) == 1


def test_a_reporter_that_ends_before_its_record_is_replaced() -> None:
    descriptors = GroupDescriptors.create(2)
    rendezvous = Rendezvous(descriptors.seat(0), timeout_s=0.01)
    os.eventfd_read(descriptors.verdict_fd)
    with pytest.raises(UlyssesPeerError, match="rank 1 did not join"):
        rendezvous.join(FACTS, refusal=None, timeout_s=0.01)
    rendezvous.release()
    descriptors.close()


def test_a_long_text_with_any_letters_survives_the_record() -> None:
    with joined(2) as ranks:
        ranks[0].abort("ä\n\"'\\☃" * 500)
        with pytest.raises(UlyssesPeerError, match="rank 0 gave up: ä"):
            ranks[1].check()


def test_time_in_which_the_waiter_was_stopped_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    with joined(2, timeout_s=1.0) as (first, second):
        now = [0.0]
        waits = []

        def stopped_for_long(word: int, seen: int, timeout_s: float) -> None:
            now[0] += 1000.0
            waits.append(word)
            if len(waits) == 5:
                second.post(5)

        monkeypatch.setattr("ithaka.comm_ext.ulysses.rendezvous.time.monotonic", lambda: now[0])
        monkeypatch.setattr(first._futex, "wait", stopped_for_long)
        first.post(5)
        first.settle(1)
        assert len(waits) == 5


def test_leaving_wakes_and_fails_whoever_waits() -> None:
    with joined(2) as (first, second):
        first.post(5)
        second.release()
        with pytest.raises(UlyssesPeerError) as caught:
            first.settle(1)
        assert (caught.value.code, caught.value.rank) == (UlyssesErrorCode.PEER_CLOSED, 1)


def test_a_sleeper_is_woken_by_the_post_and_not_by_its_next_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ithaka.comm_ext.ulysses.rendezvous._SLICE_S", 3600.0)
    with joined(2, timeout_s=7200.0) as (first, second):
        asleep = threading.Event()
        wait = first._futex.wait

        def announced(word: int, seen: int, timeout_s: float) -> None:
            asleep.set()
            wait(word, seen, timeout_s)

        monkeypatch.setattr(first._futex, "wait", announced)
        waiter = threading.Thread(target=lambda: first.settle(first.post(5)), daemon=True)
        waiter.start()
        assert asleep.wait(20)
        second.post(5)
        waiter.join(20)
        assert not waiter.is_alive()
        assert first.num_unsettled == 0


def test_spinning_gets_short_where_waits_are_long_and_back(monkeypatch: pytest.MonkeyPatch) -> None:
    with joined(2) as (first, second):
        now_ns = [0]

        def read_clock() -> int:
            now_ns[0] += 1000  # a look at the clock takes its time
            return now_ns[0]

        monkeypatch.setattr("ithaka.comm_ext.ulysses.rendezvous.time.monotonic_ns", read_clock)

        def late_by(extra_ns: int) -> None:
            def post_late(word: int, seen: int, timeout_s: float) -> None:
                now_ns[0] += extra_ns
                second.post(5)

            monkeypatch.setattr(first._futex, "wait", post_late)
            first.settle(first.post(5))

        spins = [first._spin_ns]
        for _ in range(6):
            late_by(10_000_000)
            spins.append(first._spin_ns)
        assert spins == sorted(spins, reverse=True)
        assert spins[-1] == 20_000
        for _ in range(6):
            late_by(1_000)
        assert first._spin_ns == 300_000 == spins[0]
        assert first.counters.slept == 12


def test_a_wait_on_a_word_that_has_changed_returns_at_once() -> None:
    with joined(2) as (first, _):
        word = first._control.posted_word[0]
        first._futex.wait(word, first._words[word] + 1, 3600.0)
        first._futex.wait(word, first._words[word], 0.001)
        first._futex.full_fence()


def test_a_supervisor_makes_groups_without_torch() -> None:
    script = "import sys, ithaka.comm_ext.ulysses.group as g; g.GroupDescriptors.create(2); print('torch' in sys.modules)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    printed = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert printed.stdout == "False\n"
