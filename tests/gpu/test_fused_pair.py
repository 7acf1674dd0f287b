"""The fused call in processes, compiled too, and the shipped world that uses it.

With two GPUs each rank has its own. With one they share it by turns of their contexts, which proves less: no peer's memory.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.process.ulysses_ranks import RankPool

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def zygote() -> Iterator[RankPool]:
    with RankPool("tests.gpu.pair_scenarios") as pool:
        yield pool


@pytest.fixture
def pool(zygote: RankPool) -> Iterator[RankPool]:
    yield zygote
    zygote.end_ranks()


def test_the_fused_call(pool: RankPool) -> None:
    ranks = pool.start("fused", 2)
    assert [rank.result() for rank in ranks] == [{"checked": True}] * 2


@pytest.mark.parametrize("backend", ["sm", "copy_engine"])
def test_one_graph_by_the_default_compiler(pool: RankPool, backend: str) -> None:
    ranks = pool.start("compiled", 2, backend=backend)
    assert [rank.result(deadline_s=90) for rank in ranks] == [{"equal": 3}] * 2


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_the_world_walks_as_on_the_cpu(pool: RankPool, num_ranks: int) -> None:
    ranks = pool.start("world", num_ranks, dtype="float32")
    seen = [rank.result() for rank in ranks]
    assert max(seen[0]["furthest"]) <= 2, seen
    assert all(rank == {"frames": 0} for rank in seen[1:])


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_the_world_in_half_the_bits_walks_nearly_so(pool: RankPool, num_ranks: int) -> None:
    ranks = pool.start("world", num_ranks, dtype="bfloat16")
    seen = [rank.result() for rank in ranks]
    assert seen[0]["mean"] <= 4, seen
