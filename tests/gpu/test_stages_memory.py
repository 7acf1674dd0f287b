"""Latents by device memory: from a leader's outlet to a stage's loop, on the same device and on another one."""

from __future__ import annotations

import contextlib

import pytest
import torch

from ithaka.comm_ext.channel.base import ChannelMessage
from ithaka.workers.stages.memory import DeviceMemory, memory_of
from tests.unit.stage_parts import StageRig

pytestmark = pytest.mark.gpu
LEADER = torch.device("cuda", 0)
OTHERS = [torch.device("cuda", index) for index in range(min(2, torch.cuda.device_count()))]


@pytest.mark.parametrize("taker", OTHERS, ids=str)
def test_tensors_arrive_on_the_stage_s_device_as_they_were(taker: torch.device) -> None:
    ours, theirs = DeviceMemory(LEADER), DeviceMemory(taker)
    assert isinstance(memory_of(taker, LEADER, [taker]), DeviceMemory)
    kinds = (1, torch.uint8), (77, torch.bfloat16), (4096, torch.float32)
    tensors = [torch.arange(count, device=LEADER).to(dtype) for count, dtype in kinds]
    producer, fds = ours.create(3, sum(tensor.nbytes for tensor in tensors), ["fifo"])
    consumer = theirs.open(fds, 0)
    with contextlib.closing(producer), contextlib.closing(consumer):
        for _ in range(20):
            slot = producer.claim()
            while slot is None:
                slot = producer.claim()
            producer.publish(slot, ChannelMessage(b"", ours.write(slot, tensors)))
            delivery = consumer.take()
            while delivery is None:
                delivery = consumer.take()
            read = theirs.read(delivery)
            assert all(tensor.device == taker for tensor in read)
            assert all(torch.equal(a.cpu(), b.cpu()) for a, b in zip(read, tensors, strict=True))
            del read
            consumer.release(delivery)


@pytest.mark.parametrize("taker", OTHERS, ids=str)
def test_a_stage_decodes_what_its_leader_made(taker: torch.device) -> None:
    with StageRig(memories=(DeviceMemory(LEADER), DeviceMemory(taker)), device=LEADER) as rig:
        rig.open("a")
        for chunk in range(3):
            rig.publish("a", chunk, value=10 * chunk)
        assert [value for _, value in rig.sink.events.count(3)] == [1, 12, 23]
        rig.close_session("a", 3)
        rig.decoder.events.wait(lambda seen: ("close", "a") in seen)
