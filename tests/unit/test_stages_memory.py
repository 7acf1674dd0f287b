"""Tensors through a slot of host memory: every dtype and shape, bit for bit."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ithaka.comm_ext.channel.base import ChannelMessage
from ithaka.workers.stages.memory import HostMemory, memory_of

DTYPES = (torch.bool, torch.uint8, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64)
TENSORS = st.lists(st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(0, 4), max_size=4)), max_size=6)


def filled(dtype: torch.dtype, shape: list[int]) -> torch.Tensor:
    values = torch.arange(torch.Size(shape).numel(), dtype=torch.float32).reshape(shape) % 7
    return values.to(dtype)


@settings(max_examples=50, deadline=None)
@given(TENSORS)
def test_tensors_arrive_as_they_were(kinds: list[tuple[torch.dtype, list[int]]]) -> None:
    memory = memory_of(torch.device("cpu"))
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
        consumer.release(delivery)
        assert [tensor.dtype for tensor in read] == [tensor.dtype for tensor in tensors]
        assert all(torch.equal(ours, theirs) for ours, theirs in zip(read, tensors, strict=True))
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
        with pytest.raises(ValueError, match="1 tensors of 8000 bytes do not fit"):
            memory.write(slot, [torch.zeros(1000, dtype=torch.int64)])
        turned = torch.arange(12.0).reshape(3, 4).t()
        producer.publish(slot, ChannelMessage(b"", memory.write(slot, [turned])))
        delivery = consumer.take()
        assert delivery is not None
        (read,) = memory.read(delivery)
        consumer.release(delivery)
        assert torch.equal(read, turned) and read.is_contiguous()
    finally:
        consumer.close()
        producer.close()
