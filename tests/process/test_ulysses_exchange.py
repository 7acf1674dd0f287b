"""The exchange between real processes: equal to gloo, under load, delayed, over many lives, compiled."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.process.ulysses_ranks import RankPool

from ithaka.comm_ext.ulysses.group import GroupDescriptors

SHAPES = [(1, 64, 4, 64), (1, 65, 12, 16), (2, 9, 5, 3), (1, 24, 24, 128)]

DOCUMENTED_RANK = """
import sys, torch
from ithaka.comm_ext.ulysses.communicator import UlyssesCommunicator
from ithaka.comm_ext.ulysses.group import RankGroup
rank, fds = int(sys.argv[1]), [int(fd) for fd in sys.argv[2:]]
with UlyssesCommunicator(RankGroup.from_fds(rank=rank, num_ranks=2, fds=fds), max_bytes=16 << 20) as communicator:
    whole = communicator.scatter_heads(torch.full((1, 2, 2, 1), float(rank)))
    print(whole.flatten().tolist())
"""


@pytest.fixture(scope="module")
def zygote() -> Iterator[RankPool]:
    with RankPool() as pool:
        yield pool


@pytest.fixture
def pool(zygote: RankPool) -> Iterator[RankPool]:
    yield zygote
    zygote.end_ranks()


def test_the_documented_way_to_start_ranks() -> None:
    descriptors = GroupDescriptors.create(2)
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", DOCUMENTED_RANK, str(rank), *map(str, descriptors.fds)],
            pass_fds=descriptors.fds,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    descriptors.close()
    assert [json.loads(rank.communicate(timeout=60)[0]) for rank in ranks] == [[0.0, 0.0, 1.0, 1.0]] * 2
    assert [rank.returncode for rank in ranks] == [0, 0]


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 4])
def test_bit_equal_to_all_gather_and_slice(pool: RankPool, tmp_path: Path, num_ranks: int) -> None:
    ranks = pool.start("against_gloo", num_ranks, shapes=SHAPES, store=str(tmp_path / "store"))
    assert [rank.result() for rank in ranks] == [{"equal": 4 * len(SHAPES)}] * num_ranks


@pytest.mark.parametrize(("num_ranks", "calls"), [(2, 2000), (3, 400), (4, 400)])
def test_many_calls_of_alternating_shape_with_poisoned_slots(pool: RankPool, num_ranks: int, calls: int) -> None:
    ranks = pool.start("random_calls", num_ranks, seed=num_ranks, calls=calls)
    assert [rank.result() for rank in ranks] == [{"checked": calls}] * num_ranks


@pytest.mark.parametrize("phase", ["before_send", "between_copies", "before_post", "after_post", "after_settle"])
@pytest.mark.parametrize("late", [0, 1, 2])
def test_a_late_rank_spoils_nothing(pool: RankPool, phase: str, late: int) -> None:
    held = {"ranks": [late], "phase": phase, "call": 3}
    ranks = pool.start("exchange_loop", 3, held=held, say_when_waiting=True)
    others = [rank for rank in ranks if rank.rank != late]
    while ranks[late].report() != {"reached": phase}:
        pass
    for rank in others:
        rank.reached("waiting")
    ranks[late].go()
    assert [rank.result() for rank in ranks] == [{"good": 6}] * 3


def test_two_communicators_of_overlapping_ranks(pool: RankPool) -> None:
    ranks = pool.start("two_groups", 3)
    descriptors = GroupDescriptors.create(2)
    for rank in ranks[:2]:
        socket.send_fds(rank.control, [b"pair"], descriptors.fds)
    descriptors.close()
    assert [rank.result() for rank in ranks] == [{"equal": 100}, {"equal": 100}, {"equal": 50}]


def test_footprint_is_flat_over_a_hundred_lives(pool: RankPool) -> None:
    lives = 100
    ranks = pool.start("many_lives", 2, lives=lives)
    for number in range(lives):
        descriptors = GroupDescriptors.create(2)
        for rank in ranks:
            rank.reached(f"life {number}")
            socket.send_fds(rank.control, [b"live"], descriptors.fds)
        descriptors.close()
    for rank in ranks:
        result = rank.result()
        descriptors_few, mappings_few, resident_few = result["after_few"]
        descriptors_all, mappings_all, resident_all = result["after_all"]
        assert (descriptors_all, mappings_all) == (descriptors_few, mappings_few)
        assert mappings_all == 0
        assert resident_all - resident_few < 256  # pages; one forgotten window would be some 100 a life


def test_one_graph_around_the_exchanges(pool: RankPool) -> None:
    ranks = pool.start("compiled", 2, backend="aot_eager")
    assert [rank.result(deadline_s=100) for rank in ranks] == [{"equal": 4, "turns": True}] * 2
