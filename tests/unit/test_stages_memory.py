"""Tensors through a slot of host memory: every dtype and shape, bit for bit."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ithaka.comm_ext.channel.base import ChannelMessage, LayoutError
from ithaka.workers.stages.memory import DeviceMemory, HostMemory, memory_of

DTYPES = (torch.bool, torch.uint8, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64)
TENSORS = st.lists(st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(0, 4), max_size=4)), max_size=6)


def filled(dtype: torch.dtype, shape: list[int]) -> torch.Tensor:
    values = torch.arange(torch.Size(shape).numel(), dtype=torch.float32).reshape(shape) % 7
    return values.to(dtype)


@settings(max_examples=50, deadline=None)
@given(TENSORS)
def test_tensors_arrive_as_they_were(kinds: list[tuple[torch.dtype, list[int]]]) -> None:
    memory = HostMemory()
    tensors = [filled(dtype, shape) for dtype, shape in kinds]
    producer, fds = memory.create(2, max(1, sum(tensor.nbytes for tensor in tensors)), ["fifo"])
    consumer = memory.open(fds, 0)
    try:
        slot = producer.claim()
        assert slot is not None
        producer.publish(slot, ChannelMessage(b"", memory.write(slot, tensors)))
        delivery = consumer.take()
        assert delivery is not None
        read = memory.read(delivery)
        assert [tensor.dtype for tensor in read] == [tensor.dtype for tensor in tensors]
        assert all(torch.equal(ours, theirs) for ours, theirs in zip(read, tensors, strict=True))
        del read
        consumer.release(delivery)
    finally:
        consumer.close()
        producer.close()


def test_a_view_arrives_whole_and_what_does_not_fit_is_refused() -> None:
    memory = HostMemory()
    producer, fds = memory.create(1, 64, ["fifo"])
    consumer = memory.open(fds, 0)
    try:
        slot = producer.claim()
        assert slot is not None
        with pytest.raises(LayoutError, match="ends at 80000, the slot has"):
            memory.write(slot, [torch.zeros(10_000, dtype=torch.int64)])
        turned = torch.arange(12.0).reshape(3, 4).t()
        producer.publish(slot, ChannelMessage(b"", memory.write(slot, [turned])))
        delivery = consumer.take()
        assert delivery is not None
        (read,) = memory.read(delivery)
        assert torch.equal(read, turned) and read.is_contiguous()
        del read
        consumer.release(delivery)
    finally:
        consumer.close()
        producer.close()


def test_device_memory_is_chosen_where_every_taker_reaches_the_leader(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[torch.device, torch.device]] = []

    def can_reach(taker: torch.device, leader: torch.device) -> bool:
        asked.append((taker, leader))
        return taker.index != 3 and taker != leader

    monkeypatch.setattr(torch.cuda, "can_device_access_peer", can_reach)
    leader, near, far = (torch.device("cuda", index) for index in (0, 1, 3))
    assert isinstance(memory_of(near, leader, [near]), DeviceMemory)
    assert isinstance(memory_of(near, leader, [near, far]), HostMemory)
    assert isinstance(memory_of(leader, leader, [leader]), DeviceMemory), "CUDA says of no device that it reaches itself"
    assert asked == [(near, leader), (near, leader), (far, leader)]
    cpu = torch.device("cpu")
    assert isinstance(memory_of(cpu, cpu, [cpu]), HostMemory)
