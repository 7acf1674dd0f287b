"""Parts of heads, chunks, replicated rows, shared key heads, rings: on the host, and by the CUDA engine on the CPU."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.parts_checks import CHECKS, check_allocation, check_ring
from tests.unit.cuda_emulation import pretend_devices
from tests.unit.ulysses_loopback import on_every_rank as outcomes_of

from ithaka.comm_ext.ulysses.communicator import UlyssesCommunicator
from ithaka.comm_ext.ulysses.cuda_calibration import Calibration, Launch, Row
from ithaka.comm_ext.ulysses.errors import UlyssesErrorCode, UlyssesInputError

LAUNCHES = {"sm": Launch(2, 1, 0.0), "hybrid": Launch(1, 1, 0.5), "copy_engine": Launch(0, 1, 1.0)}
MEGABYTE = 1 << 20


@pytest.fixture(params=["host", "gloo", *LAUNCHES])
def options(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, engine: Path) -> dict[str, Any]:
    """A backend to join with."""
    if request.param in ("host", "gloo"):
        return {"backend": request.param}
    pretend_devices(monkeypatch, engine)
    return {"device": "cuda:0", "calibration": Calibration("test", (Row(2, 1 << 60, LAUNCHES[request.param]),))}


def on_every_rank(num_ranks: int, body: Callable[[UlyssesCommunicator], None], **options: Any) -> None:
    """All failures are raised."""
    failures = [outcome for outcome in outcomes_of(num_ranks, body, **options) if isinstance(outcome, Exception)]
    if failures:
        raise ExceptionGroup("; ".join(str(failure)[:200] for failure in failures), failures)


def dawdling(rank: int) -> Callable[[int], None]:
    delays = random.Random(rank)

    def delay(turn: int) -> None:
        if delays.random() < 0.3:
            threading.Event().wait(0.003)

    return delay


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("num_ranks", [2, 3])
def test_parts(options: dict[str, Any], num_ranks: int, check: Callable[[UlyssesCommunicator, str], None]) -> None:
    on_every_rank(num_ranks, lambda communicator: check(communicator, "cpu"), max_bytes=8 * MEGABYTE, **options)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_parts_of_a_group_of_one(check: Callable[[UlyssesCommunicator, str], None]) -> None:
    on_every_rank(1, lambda communicator: check(communicator, "cpu"))


@pytest.mark.parametrize("num_ranks", [2, 3])
def test_rings_are_written_in_place_and_never_too_early(options: dict[str, Any], num_ranks: int) -> None:
    def body(communicator: UlyssesCommunicator) -> None:
        check_ring(communicator, dawdling(communicator.rank), "cpu", turns=13)

    on_every_rank(num_ranks, body, max_bytes=8 * MEGABYTE, **options)


def test_results_land_in_allocated_memory_without_a_copy(monkeypatch: pytest.MonkeyPatch, engine: Path) -> None:
    pretend_devices(monkeypatch, engine)

    def body(communicator: UlyssesCommunicator) -> None:
        out = communicator.allocate((1, 8, 2, 8), torch.float32)
        before = communicator.describe()["reserved_bytes"]
        for turn in range(3):
            whole = torch.randn(1, 8, 4, 8, generator=torch.Generator().manual_seed(turn))
            assert communicator.scatter_heads(whole.chunk(2, 1)[communicator.rank], out=out) is out
            assert torch.equal(out, whole.chunk(2, 2)[communicator.rank])
        described = communicator.describe()
        assert described["reserved_bytes"] == before  # no slot was needed
        assert described["allocated_bytes"] >= out.numel() * 4

    on_every_rank(2, body, device="cuda:0", max_bytes=MEGABYTE)


def test_memory_for_results(options: dict[str, Any]) -> None:
    on_every_rank(2, check_allocation, max_bytes=MEGABYTE, **options)


def test_memory_for_results_runs_out_with_a_message(monkeypatch: pytest.MonkeyPatch, engine: Path) -> None:
    pretend_devices(monkeypatch, engine)

    def body(communicator: UlyssesCommunicator) -> None:
        communicator.allocate((MEGABYTE // 2,), torch.int8)
        with pytest.raises(UlyssesInputError) as caught:
            communicator.allocate((MEGABYTE // 2 + 1,), torch.int8)
        assert caught.value.code is UlyssesErrorCode.OVER_CAPACITY
        with pytest.raises(UlyssesInputError) as caught:
            communicator.scatter_heads(torch.zeros(1, 1024, 8, 32), tag="too large")
        assert caught.value.code is UlyssesErrorCode.OVER_CAPACITY
        communicator.scatter_heads(torch.zeros(1, 8, 8, 32), tag="fits")

    on_every_rank(2, body, device="cuda:0", max_bytes=MEGABYTE)
