"""Real processes at both ends of a channel, in host memory and in device memory that is none (``fake_device``)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from tests.process import channel_scenarios
from tests.process.channel_stage import Stage, on_stage

HOST = pytest.param(("host", (0,)), id="host")
SAME_DEVICE = pytest.param(("fake", (0,)), id="same device")
OTHER_DEVICE = pytest.param(("fake", (1,)), id="other device")


@pytest.fixture
def stage(request: pytest.FixtureRequest) -> Iterator[Stage]:
    yield from on_stage(*request.param)


@pytest.mark.parametrize("stage", [HOST, SAME_DEVICE, OTHER_DEVICE], indirect=True)
@pytest.mark.parametrize("scenario", channel_scenarios.ON_ANY_MEMORY, ids=lambda scenario: scenario.__name__)
def test_scenario(scenario: Callable[[Stage], None], stage: Stage) -> None:
    scenario(stage)


@pytest.mark.parametrize("stage", [HOST], indirect=True)
def test_a_producer_killed_in_full_flight_is_succeeded(stage: Stage) -> None:
    channel_scenarios.a_producer_killed_in_full_flight_is_succeeded(stage)


@pytest.mark.parametrize("stage", [SAME_DEVICE, OTHER_DEVICE], indirect=True)
def test_memory_mapped_by_the_killed_is_freed(stage: Stage) -> None:
    channel_scenarios.memory_mapped_by_the_killed_is_freed(stage)
