"""The scenarios of ``tests/process`` on real devices, and what only those can show."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest
import torch

from tests.process import channel_scenarios
from tests.process.channel_memory import CudaMemory
from tests.process.channel_stage import Stage, on_stage

needs_two = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
SAME_DEVICE = pytest.param(("cuda", (0,)), id="same device")
OTHER_DEVICE = pytest.param(("cuda", (1,)), id="other device", marks=needs_two)
BOTH_DEVICES = pytest.param(("cuda", (0, 1, 1)), id="both devices", marks=needs_two)
NUM_KILLED_AT_ONCE = 8


@pytest.fixture
def stage(request: pytest.FixtureRequest) -> Iterator[Stage]:
    yield from on_stage(*request.param)


@pytest.mark.parametrize("stage", [SAME_DEVICE, OTHER_DEVICE], indirect=True)
@pytest.mark.parametrize("scenario", channel_scenarios.ON_ANY_MEMORY, ids=lambda scenario: scenario.__name__)
def test_scenario(scenario: Callable[[Stage], None], stage: Stage) -> None:
    scenario(stage)


@pytest.mark.parametrize("stage", [BOTH_DEVICES], indirect=True)
@pytest.mark.parametrize(
    "scenario",
    [
        channel_scenarios.three_consumers_at_different_speeds,
        channel_scenarios.two_consumers_in_one_process_share_what_is_mapped,
    ],
    ids=lambda scenario: scenario.__name__,
)
def test_consumers_on_two_devices(scenario: Callable[[Stage], None], stage: Stage) -> None:
    scenario(stage)


@pytest.mark.parametrize("stage", [SAME_DEVICE, OTHER_DEVICE], indirect=True)
def test_torchs_expandable_segments_do_not_matter(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """The arena is no memory of torch's allocator."""
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        monkeypatch.setenv(name, "expandable_segments:True")
    channel_scenarios.a_producer_ahead_of_its_consumer_waits_for_slots(stage, "torch")


@pytest.mark.parametrize("stage", [BOTH_DEVICES, SAME_DEVICE], indirect=True)
def test_device_memory_is_flat_over_two_hundred_opened_killed_and_closed(stage: Stage) -> None:
    assert isinstance(stage.memory, CudaMemory)
    num_rounds = 200 // NUM_KILLED_AT_ONCE // 2
    free: list[list[int]] = []
    descriptors: list[int] = []
    for _ in range(num_rounds):
        channel = stage.create(num_consumers=NUM_KILLED_AT_ONCE)
        producer = stage.producer()
        peers = [stage.start(str(index)) for index in range(NUM_KILLED_AT_ONCE)]
        for peer in peers:
            peer.tell("take")
        stage.publish(producer, 1)
        for peer in peers:
            assert peer.hear() == "1 1"
            peer.kill()
        for index in range(NUM_KILLED_AT_ONCE):
            channel.drop_consumer(index)
        producer.close()
        channel.close()
        free.append([stage.memory.free_bytes(device) for device in sorted(set(stage.devices))])
        descriptors.append(len(os.listdir("/proc/self/fd")))
    # A process that ended before may still have been giving back its own.
    assert all(late >= early for early, late in zip(free[1], free[-1], strict=True))
    assert descriptors[1:] == descriptors[1:2] * (num_rounds - 1)
