"""The CUDA engine with all ranks on one GPU: every shape, a thousand calls, graphs, tags, faults."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack

import pytest
import torch

from ithaka.comm_ext.ulysses.communicator import UlyssesCommunicator
from ithaka.comm_ext.ulysses.errors import UlyssesErrorCode, UlyssesInputError, UlyssesPeerError
from ithaka.comm_ext.ulysses.group import GroupDescriptors, RankGroup
from ithaka.comm_ext.ulysses.plan import Direction
from tests.gpu.exchange_checks import (
    POISON,
    Case,
    assert_none,
    call,
    check_alternation,
    check_cases,
    check_graphs,
    check_tagged_group,
    draw,
    mismatches,
)
from tests.gpu.loopback import Threads, engines, on_every_rank, on_every_seat

pytestmark = pytest.mark.gpu
ENGINES = ("sm", "hybrid", "copy_engine")
MILLISECOND_CYCLES = 2_000_000


def holding_back(rank: int, num_ranks: int) -> Callable[[int], None]:
    """Now and then this rank comes late, each rank in its turn."""

    def delay(turn: int) -> None:
        if turn % (3 * num_ranks) == 3 * rank:
            torch.cuda._sleep(MILLISECOND_CYCLES)  # type: ignore[no-untyped-call]

    return delay


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("num_ranks", [2, 3, 4, 8])
def test_every_case_is_bit_exact(num_ranks: int, engine: str) -> None:
    on_every_rank(num_ranks, lambda ranks: check_cases(ranks, rounds=4), calibration=engines(num_ranks)[engine])


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("num_ranks", [2, 4, 8])
def test_a_thousand_calls_with_late_ranks(num_ranks: int, engine: str) -> None:
    def body(communicator: UlyssesCommunicator) -> None:
        check_alternation(communicator, 1000, holding_back(communicator.rank, num_ranks))

    on_every_rank(num_ranks, body, calibration=engines(num_ranks)[engine])


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("num_ranks", [2, 4])
def test_tags_wait_together(num_ranks: int, engine: str) -> None:
    on_every_rank(num_ranks, lambda ranks: check_tagged_group(ranks, 20), calibration=engines(num_ranks)[engine])


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("num_ranks", [2, 4, 8])
def test_graphs_replay_between_eager_calls(num_ranks: int, engine: str) -> None:
    """Words, slots and barriers of replays, with each rank's copies on its own stream.

    A recording with a lane forks: its copies lie beside its kernels. The branches of all graphs of a process share a few
    queues of the device, so with many ranks on one GPU the copies of one may stand behind the wait of another, which waits
    for them. That is a matter of ranks that share a GPU. What a forked recording does is shown where they do not: by two
    processes with a GPU each (test_ulysses_processes.py), and by four ranks whose streams are threads of the CPU
    (tests/unit/test_cuda_engine.py).
    """
    together = Threads(num_ranks)

    def body(communicator: UlyssesCommunicator) -> None:
        check_graphs(communicator, 40, holding_back(communicator.rank, num_ranks), together)

    on_every_rank(num_ranks, body, in_line=True, calibration=engines(num_ranks)[engine])


def test_two_groups_of_overlapping_ranks() -> None:
    pair = GroupDescriptors.create(2)
    seats = [pair.seat(rank) for rank in range(2)]
    pair.close()
    whole = Case(Direction.SCATTER, 1, (200,) * 3, (4,) * 3, 128, torch.bfloat16)
    half = Case(Direction.SCATTER, 1, (300,) * 2, (6,) * 2, 64, torch.bfloat16)

    def body(communicator: UlyssesCommunicator) -> None:
        rank, device = communicator.rank, communicator.device
        with ExitStack() as stack:
            groups = [(communicator, whole)]
            if rank < 2:
                second = UlyssesCommunicator(seats[rank], max_bytes=1 << 24, device=device, calibration=engines(3)["sm"])
                groups.append((stack.enter_context(second), half))
            drawn = [[draw(case, rank, device, seed) for seed in range(3)] for _, case in groups]
            wrong = torch.zeros((), dtype=torch.int64, device=device)
            for turn in range(100):
                for (each, case), data in zip(groups, drawn, strict=True):
                    got = call(each, case, data[turn % 3].x, "t")
                    wrong += mismatches(got, data[turn % 3].wanted)
                    got.view(torch.uint8).fill_(POISON)
                    del got
            torch.cuda.current_stream().synchronize()
            assert_none(wrong, communicator, "two groups")

    on_every_rank(3, body, calibration=engines(3)["sm"])


def test_a_held_lease_is_an_error_that_leaves_the_group_usable() -> None:
    def body(communicator: UlyssesCommunicator) -> None:
        x = torch.zeros(1, 8, 4, 16, device=communicator.device)
        held = [communicator.scatter_heads(x, tag="t") for _ in range(2)]
        with pytest.raises(UlyssesInputError) as caught:
            communicator.scatter_heads(x, tag="t")
        assert caught.value.code is UlyssesErrorCode.LEASE_OVERRUN
        del held
        assert communicator.scatter_heads(x, tag="t").shape == (1, 16, 2, 16)

    on_every_rank(2, body)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_rank_that_stays_away_is_named_in_time(engine: str) -> None:
    def body(seat: RankGroup) -> UlyssesPeerError | None:
        with UlyssesCommunicator(
            seat, max_bytes=1 << 24, timeout_s=0.5, device=torch.device("cuda", 0), calibration=engines(3)[engine]
        ) as communicator:
            x = torch.zeros(1, 8, 6, 64, device=communicator.device)
            communicator.scatter_heads(x, tag="t")
            torch.cuda.current_stream().synchronize()
            with pytest.raises(UlyssesPeerError) as caught:
                if communicator.rank != 1:
                    communicator.scatter_heads(x, tag="t")
                    torch.cuda.current_stream().synchronize()
                while True:
                    communicator.check()
            return caught.value

    faults = on_every_seat(3, body)
    for fault in faults:
        assert isinstance(fault, UlyssesPeerError), fault
        assert (fault.code, fault.rank) == (UlyssesErrorCode.PEER_TIMED_OUT, 1)


def test_an_abort_ends_a_wait_on_the_device_at_once() -> None:
    waiting = threading.Event()

    def body(seat: RankGroup) -> UlyssesPeerError | None:
        with UlyssesCommunicator(seat, max_bytes=1 << 24, timeout_s=60, device=torch.device("cuda", 0)) as communicator:
            x = torch.zeros(1, 8, 4, 64, device=communicator.device)
            communicator.scatter_heads(x, tag="t")
            torch.cuda.current_stream().synchronize()
            with pytest.raises(UlyssesPeerError) as caught:
                if communicator.rank == 0:
                    communicator.scatter_heads(x, tag="t")
                    waiting.set()
                    torch.cuda.current_stream().synchronize()  # ends by the abort, long before timeout_s
                else:
                    assert waiting.wait(30)
                    communicator.abort("on purpose")
                while True:
                    communicator.check()
            return caught.value

    for fault in on_every_seat(2, body):
        assert isinstance(fault, UlyssesPeerError), fault
        assert (fault.code, fault.rank) == (UlyssesErrorCode.PEER_ABORTED, 1)


def test_calls_that_differ_are_found_by_their_signatures() -> None:
    def body(seat: RankGroup) -> UlyssesPeerError | None:
        with UlyssesCommunicator(seat, max_bytes=1 << 24, timeout_s=5, device=torch.device("cuda", 0)) as communicator:
            small, large = (torch.zeros(1, tokens, 4, 64, device=communicator.device) for tokens in (4, 8))
            for x in (large, small):
                communicator.scatter_heads(x)
            torch.cuda.current_stream().synchronize()
            with pytest.raises(UlyssesPeerError) as caught:
                communicator.scatter_heads(small if communicator.rank else large)
                torch.cuda.current_stream().synchronize()
                while True:
                    communicator.check()
            return caught.value

    for fault in on_every_seat(2, body):
        assert isinstance(fault, UlyssesPeerError), fault
        assert fault.code is UlyssesErrorCode.PEER_DISAGREED


def test_a_compiled_function_exchanges_in_one_graph() -> None:
    def body(communicator: UlyssesCommunicator) -> None:
        x = torch.randn(1, 16, 4, 64, device=communicator.device)
        plain = communicator.gather_heads(communicator.scatter_heads(x) * 2)
        compiled = torch.compile(
            lambda value: communicator.gather_heads(communicator.scatter_heads(value) * 2), fullgraph=True, backend="eager"
        )
        assert torch.equal(compiled(x), plain)
        assert torch.equal(plain, x * 2)

    on_every_rank(2, body)


def test_a_hundred_groups_leave_no_memory_behind() -> None:
    def body(seat: RankGroup) -> None:
        with UlyssesCommunicator(seat, max_bytes=1 << 26, timeout_s=10, device=torch.device("cuda", 0)) as communicator:
            communicator.scatter_heads(torch.zeros(1, 8, 4, 64, device=communicator.device), tag="t")

    def one_group() -> int:
        for outcome in on_every_seat(2, body):
            assert outcome is None, outcome
        torch.cuda.synchronize()
        return torch.cuda.mem_get_info(0)[0]

    free_before = [one_group() for _ in range(3)][-1]
    free_after = [one_group() for _ in range(100)][-1]
    assert free_before - free_after < 1 << 26
