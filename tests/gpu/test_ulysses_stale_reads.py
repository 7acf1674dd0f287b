"""Whether an announcement proves that the data is there, between two devices; and whether this test could tell.

Both builds have writers that dawdle (see dawdling_intrinsics.cuh). One is the engine as it is otherwise, and must be right. The
other has lost its release, and must be caught: by the same reads, right after the wait, from memory that was poisoned.
Ranks are late in turns: the other one is done with its own dawdling long before, and reads what the late one announces.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from ithaka.comm_ext.build import build
from tests.process.ulysses_ranks import RankPool

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")]
INTRINSICS = Path(__file__).with_name("dawdling_intrinsics.cuh")
ENGINES = ("sm", "hybrid", "copy_engine")
CALLS = 60


@pytest.fixture(scope="module")
def pool() -> Iterator[RankPool]:
    with RankPool("tests.gpu.process_scenarios") as started:
        yield started


def build_dawdling(*defines: str) -> Path:
    major, minor = torch.cuda.get_device_capability(0)
    text = int.from_bytes(hashlib.blake2b(INTRINSICS.read_bytes(), digest_size=4).digest(), "little")  # builds are cached
    return build([10 * major + minor], defines=[f'UL_INTRINSICS="{INTRINSICS}"', f"UL_TRIAL={text}", *defines])


@pytest.fixture(scope="module")
def released() -> Path:
    return build_dawdling()


@pytest.fixture(scope="module")
def unreleased() -> Path:
    return build_dawdling("UL_DROP_RELEASE=1")


@pytest.mark.parametrize("engine", ENGINES)
def test_what_was_announced_is_there(pool: RankPool, released: Path, engine: str) -> None:
    ranks = pool.start("stale_reads", 2, engine=engine, library=str(released), calls=CALLS)
    assert [rank.result() for rank in ranks] == [{"wrong": 0}] * 2
    pool.end_ranks()


@pytest.mark.parametrize("engine", ENGINES)
def test_an_engine_without_its_release_is_caught(pool: RankPool, unreleased: Path, engine: str) -> None:
    ranks = pool.start("stale_reads", 2, engine=engine, library=str(unreleased), calls=CALLS)
    assert all(rank.result()["wrong"] > 0 for rank in ranks)
    pool.end_ranks()
