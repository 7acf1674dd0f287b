"""The shipped model split over ranks, which are threads here with a plain exchange between them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from ithaka.workers.families.base import Controls, FamilyLoadError, StepInput
from ithaka.workers.families.wan.family import load

FRAMES = 64
TIMEOUT_S = 60


class Table:
    """Where the threads put their tensors down for each other."""

    def __init__(self, num_ranks: int) -> None:
        self.num_ranks = num_ranks
        self.barrier = threading.Barrier(num_ranks, timeout=TIMEOUT_S)
        self.parts: list[torch.Tensor] = [torch.empty(0)] * num_ranks


class ThreadExchange:
    """One rank's end of a ``Table``."""

    def __init__(self, table: Table, rank: int) -> None:
        self._table, self._rank = table, rank
        self._arrived: dict[str, torch.Tensor] = {}

    def scatter_heads(
        self, x: torch.Tensor, *, seq_splits: list[int] | None = None, head_splits: list[int] | None = None
    ) -> torch.Tensor:
        return self._exchange(x, lambda parts: torch.cat(parts, 1), 2, head_splits)

    def gather_heads(
        self, x: torch.Tensor, *, seq_splits: list[int] | None = None, head_splits: list[int] | None = None
    ) -> torch.Tensor:
        return self._exchange(x, lambda parts: torch.cat(parts, 2), 1, seq_splits)

    def scatter_heads_async(
        self, x: torch.Tensor, tag: str, *, seq_splits: list[int] | None = None, head_splits: list[int] | None = None
    ) -> None:
        assert tag not in self._arrived
        self._arrived[tag] = self.scatter_heads(x, seq_splits=seq_splits, head_splits=head_splits)

    def wait(self, tags: Sequence[str]) -> tuple[torch.Tensor, ...]:
        return tuple(self._arrived.pop(tag) for tag in tags)

    def _exchange(
        self, x: torch.Tensor, join: Callable[[list[torch.Tensor]], torch.Tensor], dim: int, splits: list[int] | None
    ) -> torch.Tensor:
        table = self._table
        table.parts[self._rank] = x
        table.barrier.wait()
        whole = join(table.parts)
        table.barrier.wait()
        shares = splits or [whole.shape[dim] // table.num_ranks] * table.num_ranks
        return torch.split(whole, shares, dim)[self._rank].contiguous()


def _walk(rank: int, num_ranks: int, table: Table, num_frames: int) -> list[torch.Tensor | None]:
    exchange = ThreadExchange(table, rank) if num_ranks > 1 else None
    family = load(
        model="labyrinth",
        options={"dtype": "float32"},
        device=torch.device("cpu"),
        rank=rank,
        num_ranks=num_ranks,
        communicator=exchange,  # type: ignore[arg-type]
    )
    session = family.open_session("s", seed=3, prompt="sunset", options={})
    frames = []
    for chunk in range(num_frames):
        prompt = "night" if chunk == 5 else None
        controls = Controls(held=frozenset({"KeyW", "ArrowLeft"}), prompt=prompt)
        frames.append(family.step(session, StepInput("s", chunk, controls), lambda: None))
    family.close_session(session)
    return frames


def _walk_on_all(num_ranks: int, num_frames: int = FRAMES) -> list[list[torch.Tensor | None]]:
    table = Table(num_ranks)
    with ThreadPoolExecutor(num_ranks) as pool:
        walks = [pool.submit(_walk, rank, num_ranks, table, num_frames) for rank in range(num_ranks)]
        return [walk.result(timeout=TIMEOUT_S) for walk in walks]


@pytest.fixture(autouse=True, scope="module")
def _one_thread_per_rank() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def alone() -> list[torch.Tensor | None]:
    return _walk_on_all(1)[0]


@pytest.mark.parametrize(("num_ranks", "num_frames"), [(2, FRAMES), (3, 8), (4, FRAMES)])
def test_ranks_make_the_same_pictures(num_ranks: int, num_frames: int, alone: list[torch.Tensor | None]) -> None:
    leader, *followers = _walk_on_all(num_ranks, num_frames)
    for made, expected in zip(leader, alone[:num_frames], strict=True):
        assert made is not None and expected is not None
        assert (made.int() - expected.int()).abs().max() <= 2
    assert all(frame is None for follower in followers for frame in follower)


def test_more_ranks_than_heads_are_refused_with_the_reason() -> None:
    with pytest.raises(FamilyLoadError, match=r"4 attention heads.*Set ranks to 4 or fewer; numbers that divide 4 "):
        _walk(0, 5, Table(5), 1)
