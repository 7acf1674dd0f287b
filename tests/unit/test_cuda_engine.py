"""The CUDA engine's host code and kernels, compiled for the CPU: words, slots, barriers, waits and faults between ranks."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from tests.unit.cuda_emulation import EmulatedRank, EmulatedSite, compile_engine, on_every_rank, place

from ithaka.comm_ext.ulysses.cuda_calibration import Launch
from ithaka.comm_ext.ulysses.cuda_faults import DeviceFault, pack, unpack
from ithaka.comm_ext.ulysses.plan import Direction, ExchangePlan, balanced_splits, plan_exchange

POISON = 0xA5
LAUNCHES = {"sm": Launch(3, 1, 0.0), "hybrid": Launch(2, 1, 0.5), "copy_engine": Launch(0, 2, 1.0)}
SEQ, HEADS, DIM = 6, 8, 16


def plan_of(direction: Direction, rank: int, num_ranks: int, heads: int = HEADS) -> ExchangePlan:
    splits = balanced_splits(heads, num_ranks)
    tokens, width = (SEQ, heads) if direction is Direction.SCATTER else (SEQ * num_ranks, splits[rank])
    return plan_exchange(
        direction,
        (1, tokens, width, DIM),
        rank=rank,
        num_ranks=num_ranks,
        dtype="bfloat16",
        item_bytes=2,
        seq_splits=(SEQ,) * num_ranks,
        head_splits=splits,
    )


def whole(seed: int, num_ranks: int, heads: int = HEADS) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 100, (1, SEQ * num_ranks, heads, DIM), generator=generator).to(torch.bfloat16)


def sides(direction: Direction, data: torch.Tensor, rank: int, num_ranks: int) -> tuple[torch.Tensor, torch.Tensor]:
    by_sequence = data.chunk(num_ranks, 1)[rank].contiguous()
    by_heads = torch.split(data, list(balanced_splits(data.shape[2], num_ranks)), 2)[rank].contiguous()
    return (by_sequence, by_heads) if direction is Direction.SCATTER else (by_heads, by_sequence)


def void(_: object) -> None:
    """For a body that returns nothing."""


def site_of(
    rank: EmulatedRank, direction: Direction, num_ranks: int, launch: Launch, index: int, slots: int = 3, signature: int = 7
) -> EmulatedSite:
    plans = [plan_of(direction, rank.rank, num_ranks)]
    return EmulatedSite(plans, place(plans, index, index * (1 << 18), slots, signature), launch)


def check_turn(rank: EmulatedRank, site: EmulatedSite, direction: Direction, num_ranks: int, seed: int) -> None:
    """One exchange, compared, its lease poisoned afterwards: what a peer writes too early is found."""
    x, wanted = sides(direction, whole(seed, num_ranks), rank.rank, num_ranks)
    rank.exchange(site, [x])
    got = rank.result(site, 0)
    assert torch.equal(got, wanted), f"rank {rank.rank}, use {site.uses}"
    got.view(torch.uint8).fill_(POISON)


@pytest.mark.parametrize("launch", LAUNCHES.values(), ids=LAUNCHES)
@pytest.mark.parametrize("num_ranks", [2, 3, 4, 8])
def test_exchanges_in_a_row(engine: Path, num_ranks: int, launch: Launch) -> None:
    def body(rank: EmulatedRank) -> None:
        sites = [site_of(rank, direction, num_ranks, launch, index) for index, direction in enumerate(Direction)]
        delays = random.Random(rank.rank)
        for turn in range(12):
            for site, direction in zip(sites, Direction, strict=True):
                if delays.random() < 0.3:
                    threading.Event().wait(0.002)
                check_turn(rank, site, direction, num_ranks, turn)

    on_every_rank(engine, num_ranks, body)


@pytest.mark.parametrize("launch", LAUNCHES.values(), ids=LAUNCHES)
def test_one_slot_alone_takes_the_opening_barrier_each_time(engine: Path, launch: Launch) -> None:
    """A graph of one call: the slot is always the same, and its reader may be slow."""

    def body(rank: EmulatedRank) -> None:
        site = site_of(rank, Direction.SCATTER, 2, launch, 0)
        delays = random.Random(10 + rank.rank)
        x = sides(Direction.SCATTER, whole(0, 2), rank.rank, 2)[0].clone()
        graph = rank.record(1, lambda: void(rank.exchange(site, [x])))
        for turn in range(20):
            fresh, wanted = sides(Direction.SCATTER, whole(turn, 2), rank.rank, 2)
            x.copy_(fresh)
            rank.replay(graph)
            got = rank.result(site, 0)
            threading.Event().wait(delays.random() * 0.004)
            assert torch.equal(got, wanted), f"rank {rank.rank}, turn {turn}"
            got.view(torch.uint8).fill_(POISON)

    on_every_rank(engine, 2, body)


@pytest.mark.parametrize("launch", LAUNCHES.values(), ids=LAUNCHES)
@pytest.mark.parametrize("num_ranks", [2, 4])
def test_graphs_of_odd_numbers_of_calls_in_turn_with_eager_calls(engine: Path, num_ranks: int, launch: Launch) -> None:
    """Three sites of two and three slots. Neither the host's turn of the slots nor the graphs' is the device's."""

    def body(rank: EmulatedRank) -> None:
        directions = (Direction.SCATTER, Direction.GATHER, Direction.SCATTER)
        sites = [
            site_of(rank, direction, num_ranks, launch, index, slots, index + 1)
            for index, (direction, slots) in enumerate(zip(directions, (3, 3, 2), strict=True))
        ]
        inputs = [sides(direction, whole(0, num_ranks), rank.rank, num_ranks)[0].clone() for direction in directions]
        copied = torch.empty(sites[2].plans[0].output_shape, dtype=torch.bfloat16)
        delays = random.Random(20 + rank.rank)

        def calls(numbers: Sequence[int]) -> dict[int, torch.Tensor]:
            """The newest result of each site: a lease, or of the site with two slots a copy."""
            newest = {}
            for number in numbers:
                outs = [copied] if number == 2 else []
                rank.exchange(sites[number], [inputs[number]], outs)
                newest[number] = outs[0] if outs else rank.result(sites[number], 0)
            return newest

        programs = ((0, 2), (0, 2, 1, 0, 2), (1,), (0, 1, 2))
        calls(programs[3])
        results: list[dict[int, torch.Tensor]] = []

        def recorded(at: int) -> int:
            return rank.record(at + 1, lambda: results.append(calls(programs[at])))

        graphs = [recorded(at) for at in range(3)]
        for turn in range(16):
            wanted = []
            for number, direction in enumerate(directions):
                fresh, expected = sides(direction, whole(3 * turn + number, num_ranks), rank.rank, num_ranks)
                inputs[number].copy_(fresh)
                wanted.append(expected)
            if turn % 4 == 3:
                newest = calls(programs[3])
            else:
                rank.replay(graphs[turn % 4])
                newest = results[turn % 4]
            if delays.random() < 0.5:
                threading.Event().wait(0.006)  # a slow reader, while the others go on
            for number, got in newest.items():
                assert torch.equal(got, wanted[number]), f"rank {rank.rank}, turn {turn}, site {number}"
                got.view(torch.uint8).fill_(POISON)

    on_every_rank(engine, num_ranks, body)


@pytest.mark.parametrize("launch", LAUNCHES.values(), ids=LAUNCHES)
def test_sites_of_different_shapes_share_a_region(engine: Path, launch: Launch) -> None:
    """Untagged calls: two slots, results copied out, other numbers of blocks in between."""

    def body(rank: EmulatedRank) -> None:
        sites = []
        for heads, other in ((8, launch), (4, LAUNCHES["sm"])):
            plans = [plan_of(Direction.SCATTER, rank.rank, 2, heads)]
            sites.append(EmulatedSite(plans, place([plan_of(Direction.SCATTER, rank.rank, 2)], 0, 0, 2, heads), other))
        sites[1].turn = sites[0].turn
        for turn in range(30):
            site = sites[turn % 3 == 1]
            data = whole(turn, 2, site.plans[0].heads)
            x, wanted = sides(Direction.SCATTER, data, rank.rank, 2)
            out = torch.full(wanted.shape, -1.0, dtype=torch.bfloat16)
            site.uses = turn
            rank.exchange(site, [x], [out])
            assert torch.equal(out, wanted), f"rank {rank.rank}, turn {turn}"
            rank.result(site, 0).view(torch.uint8).fill_(POISON)

    on_every_rank(engine, 2, body)


@pytest.mark.parametrize("launch", LAUNCHES.values(), ids=LAUNCHES)
@pytest.mark.parametrize("num_ranks", [2, 4])
def test_sends_of_several_sites_and_one_wait(engine: Path, num_ranks: int, launch: Launch) -> None:
    def body(rank: EmulatedRank) -> None:
        sites = [site_of(rank, Direction.SCATTER, num_ranks, launch, index, signature=index + 1) for index in range(3)]
        for turn in range(8):
            pairs = [sides(Direction.SCATTER, whole(3 * turn + at, num_ranks), rank.rank, num_ranks) for at in range(3)]
            for site, (x, _) in zip(sites, pairs, strict=True):
                rank.send(site, [x])
            rank.wait(sites)
            for site, (_, wanted) in zip(sites, pairs, strict=True):
                got = rank.result(site, 0)
                assert torch.equal(got, wanted)
                got.view(torch.uint8).fill_(POISON)

    on_every_rank(engine, num_ranks, body)


def test_three_tensors_in_one_call(engine: Path) -> None:
    def body(rank: EmulatedRank) -> None:
        plans = [plan_of(Direction.SCATTER, rank.rank, 2, heads) for heads in (8, 4, 2)]
        site = EmulatedSite(plans, place(plans, 0, 0, 3, 9), LAUNCHES["sm"])
        for turn in range(6):
            pairs = [sides(Direction.SCATTER, whole(turn + at, 2, plan.heads), rank.rank, 2) for at, plan in enumerate(plans)]
            rank.exchange(site, [x for x, _ in pairs])
            for index, (_, wanted) in enumerate(pairs):
                assert torch.equal(rank.result(site, index), wanted)

    on_every_rank(engine, 2, body)


def count_wrong(path: Path, launch: Launch) -> int:
    """Elements that are not there when their announcement is, over some calls."""

    def body(rank: EmulatedRank) -> int:
        site = site_of(rank, Direction.SCATTER, 2, launch, 0)
        wrong = 0
        for turn in range(12):
            x, wanted = sides(Direction.SCATTER, whole(turn, 2), rank.rank, 2)
            rank.exchange(site, [x])
            got = rank.result(site, 0)
            wrong += int((got != wanted).sum())
            threading.Event().wait(0.01)  # what comes late is not to spoil the poison
            got.view(torch.uint8).fill_(POISON)
        return wrong

    return sum(on_every_rank(path, 2, body, timeout_s=5.0))


def test_an_engine_without_its_release_is_caught(tmp_path: Path) -> None:
    """Writers that dawdle do no harm; if nobody waits for them, these tests' kind of check sees it."""
    kept, dropped = tmp_path / "kept", tmp_path / "dropped"
    kept.mkdir()
    dropped.mkdir()
    assert count_wrong(compile_engine(kept, trial=["CPU_DAWDLE"]), LAUNCHES["sm"]) == 0
    assert count_wrong(compile_engine(dropped, trial=["CPU_DAWDLE", "CPU_DROP_RELEASE"]), LAUNCHES["sm"]) > 0


def test_copies_that_are_announced_too_early_are_caught(engine: Path, tmp_path: Path) -> None:
    early = compile_engine(tmp_path, trial=["CPU_UNORDERED_COPIES"])
    for launch in (LAUNCHES["hybrid"], LAUNCHES["copy_engine"]):
        assert count_wrong(engine, launch) == 0
        assert count_wrong(early, launch) > 0


def verdicts(ranks: Sequence[int], num_ranks: int, faults: Sequence[int]) -> set[tuple[DeviceFault, int]]:
    return {unpack(faults[rank]) for rank in ranks if rank < num_ranks}


@pytest.mark.parametrize("launch", LAUNCHES.values(), ids=LAUNCHES)
def test_a_rank_that_stays_away_is_named_by_all_others(engine: Path, launch: Launch) -> None:
    gone = threading.Event()

    def body(rank: EmulatedRank) -> int:
        site = site_of(rank, Direction.SCATTER, 3, launch, 0)
        check_turn(rank, site, Direction.SCATTER, 3, 1)
        if rank.rank == 1:
            assert gone.wait(20)
            return 0
        x, _ = sides(Direction.SCATTER, whole(2, 3), rank.rank, 3)
        for _ in range(4):  # broken is for good: the later ones return at once
            rank.exchange(site, [x])
        gone.set()
        return int(rank.words[1])

    faults = on_every_rank(engine, 3, body, timeout_s=0.3)
    assert verdicts((0, 2), 3, faults) == {(DeviceFault.TIMED_OUT, 1)}


def test_the_hosts_abort_ends_a_wait(engine: Path) -> None:
    done = threading.Event()

    def body(rank: EmulatedRank) -> int:
        site = site_of(rank, Direction.SCATTER, 2, LAUNCHES["sm"], 0)
        check_turn(rank, site, Direction.SCATTER, 2, 1)
        if rank.rank == 1:
            assert done.wait(20)
            return int(rank.words[1])
        threading.Timer(0.05, lambda: rank.words.__setitem__(0, pack(DeviceFault.ABORTED, 1))).start()
        began = time.monotonic()
        rank.exchange(site, [sides(Direction.SCATTER, whole(2, 2), 0, 2)[0]])
        assert time.monotonic() - began < 1000, "the timeout was a day"
        done.set()
        return int(rank.words[1])

    faults = on_every_rank(engine, 2, body, timeout_s=86400)
    assert unpack(faults[0]) == (DeviceFault.ABORTED, 1)


def test_another_signature_is_found(engine: Path) -> None:
    def body(rank: EmulatedRank) -> int:
        site = site_of(rank, Direction.SCATTER, 2, LAUNCHES["sm"], 0, signature=5 + rank.rank)
        rank.exchange(site, [sides(Direction.SCATTER, whole(2, 2), rank.rank, 2)[0]])
        rank.exchange(site, [sides(Direction.SCATTER, whole(2, 2), rank.rank, 2)[0]])
        return int(rank.words[1])

    for fault in on_every_rank(engine, 2, body):
        assert unpack(fault)[0] is DeviceFault.DISAGREED
