"""Torch tensors in slots of host memory, and that nothing else of the channel needs torch."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch
from tests.unit.channel_sides import create, take

from ithaka.comm_ext.channel import tensors
from ithaka.comm_ext.channel.base import ChannelMessage, LayoutError, TensorLayout
from ithaka.comm_ext.channel.device import DeviceError


@pytest.fixture
def stack() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as stack:
        yield stack


def test_tensors_arrive_as_they_were_written(stack: contextlib.ExitStack) -> None:
    _, producer, (consumer,) = create(stack)
    sent = [
        torch.randn(3, 7).bfloat16(),
        torch.randn(4, 6).t(),
        torch.empty(0, 5),
        torch.tensor(3, dtype=torch.int64),
        torch.rand(2, 2) > 0.5,
    ]
    slot = producer.claim()
    assert slot is not None
    layouts = tensors.write(slot, sent, (None, 1, None, None, None))
    assert [layout.shard_dim for layout in layouts] == [None, 1, None, None, None]
    assert all(layout.offset_bytes % 256 == 0 for layout in layouts)
    producer.publish(slot, ChannelMessage(b"", layouts))
    delivery = take(consumer)
    got = tensors.read(delivery)
    assert [tensor.dtype for tensor in got] == [tensor.dtype for tensor in sent]
    assert all(torch.equal(mine, yours) for mine, yours in zip(got, sent, strict=True))
    consumer.release(delivery)


def test_what_does_not_fit_or_lies_elsewhere_is_refused(stack: contextlib.ExitStack) -> None:
    _, producer, _ = create(stack)
    slot = producer.claim()
    assert slot is not None
    with pytest.raises(LayoutError, match="the slot has 5000"):
        tensors.write(slot, [torch.zeros(1251)])
    with pytest.raises(DeviceError, match=r"slot 0: .*lies on meta, the slot on cpu"):
        tensors.write(slot, [torch.zeros(4, device="meta")])
    with pytest.raises(LayoutError, match="the dtype is none of"):
        tensors.write(slot, [torch.zeros(4, dtype=torch.complex64)])
    with pytest.raises(LayoutError, match="shard_dim is none of its 1 dimensions"):
        tensors.write(slot, [torch.zeros(4)], (1,))
    with pytest.raises(LayoutError, match="ends at 5004"):
        tensors.view(slot.data, TensorLayout((1,), "float32", 5000))


def test_the_channel_in_device_memory_loads_no_torch() -> None:
    code = "import sys, ithaka.comm_ext.channel.cuda_ipc; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
