"""Parts of heads, chunks, replicated rows, shared key heads and rings, with all ranks on one GPU."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ithaka.comm_ext.ulysses.communicator import UlyssesCommunicator
from tests.gpu.loopback import engines, on_every_rank
from tests.gpu.test_ulysses_loopback import ENGINES, holding_back
from tests.parts_checks import CHECKS, check_allocation, check_ring

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("num_ranks", [2, 3])
def test_parts(num_ranks: int, engine: str, check: Callable[[UlyssesCommunicator], None]) -> None:
    on_every_rank(num_ranks, check, calibration=engines(num_ranks)[engine])


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("num_ranks", [2, 4])
def test_rings_are_written_in_place_and_never_too_early(num_ranks: int, engine: str) -> None:
    def body(communicator: UlyssesCommunicator) -> None:
        check_ring(communicator, holding_back(communicator.rank, num_ranks))
        check_allocation(communicator)

    on_every_rank(num_ranks, body, calibration=engines(num_ranks)[engine])
