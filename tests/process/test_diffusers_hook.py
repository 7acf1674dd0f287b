"""A transformer of diffusers, split by its own plan over real processes that exchange heads by our communicator."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.process.ulysses_ranks import RankPool

LAYERS, FORWARDS, CALLS_A_LAYER = 3, 3, 2


@pytest.fixture(scope="module")
def zygote() -> Iterator[RankPool]:
    with RankPool("tests.process.diffusers_scenarios") as pool:
        yield pool


@pytest.fixture
def pool(zygote: RankPool) -> Iterator[RankPool]:
    yield zygote
    zygote.end_ranks()


@pytest.mark.parametrize(("num_ranks", "heads"), [(2, "even"), (4, "even"), (2, "odd"), (3, "odd")])
def test_equal_to_one_rank(pool: RankPool, tmp_path: Path, num_ranks: int, heads: str) -> None:
    ranks = pool.start("transformer", num_ranks, heads=heads, store=str(tmp_path / "store"))
    for seen in [rank.result() for rank in ranks]:
        assert seen["apart"] < 1e-5, seen
        assert seen["calls"] >= LAYERS * FORWARDS * CALLS_A_LAYER
        assert seen["restored"]


def test_a_model_for_other_ranks_is_refused(pool: RankPool) -> None:
    ranks = pool.start("mismatch", 2)
    for seen in [rank.result() for rank in ranks]:
        assert "ulysses_degree=3" in seen["refused"]
        assert "ContextParallelConfig(ulysses_degree=2)" in seen["refused"]
