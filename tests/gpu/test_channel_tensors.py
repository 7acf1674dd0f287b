"""Torch tensors through a channel on real devices, all sides in one process: values, streams, shards, refusals."""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import select
import threading
from collections.abc import Callable, Iterator, Sequence

import pytest
import torch

from ithaka.comm_ext.channel import tensors
from ithaka.comm_ext.channel.base import ChannelMessage, LayoutError, TensorLayout
from ithaka.comm_ext.channel.cuda_ipc import (
    DeviceConsumer,
    DeviceProducer,
    ShardedConsumer,
    clear_event,
    open_consumer,
    open_producer,
    open_sharded_consumer,
)
from ithaka.comm_ext.channel.device import DeviceDelivery, DeviceError
from ithaka.comm_ext.channel.host_shm import HostChannel

SLOT_BYTES = 8_000_000
DEADLINE_S = 20
DEVICES = range(min(2, torch.cuda.device_count()))
needs_two = pytest.mark.skipif(len(DEVICES) < 2, reason="needs two GPUs")


@pytest.fixture
def stack() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as stack:
        yield stack


def create(stack: contextlib.ExitStack, channel_id: int = 9, num_slots: int = 3) -> HostChannel:
    channel = HostChannel.create(channel_id, num_slots, SLOT_BYTES, 1, on_device=True)
    return stack.enter_context(contextlib.closing(channel))


def fds(channel: HostChannel) -> list[int]:
    return [os.dup(fd) for fd in channel.describe()]


def pair(stack: contextlib.ExitStack, device: int, num_slots: int = 3) -> tuple[DeviceProducer, DeviceConsumer]:
    channel = create(stack, num_slots=num_slots)
    producer = stack.enter_context(contextlib.closing(open_producer(fds(channel), 0)))
    return producer, stack.enter_context(contextlib.closing(open_consumer(fds(channel), 0, device)))


def send(producer: DeviceProducer, values: Sequence[torch.Tensor], shard_dims: Sequence[int | None] = ()) -> None:
    while (slot := producer.claim()) is None:
        wait(producer.free_fd())
    layouts = tensors.write(slot, values, shard_dims)
    producer.publish(slot, ChannelMessage(b"", layouts), torch.cuda.current_stream(producer.device).cuda_stream)


def receive(consumer: DeviceConsumer | ShardedConsumer) -> DeviceDelivery:
    while (delivery := consumer.take()) is None:
        wait(consumer.ready_fd())
        if isinstance(consumer, DeviceConsumer):
            clear_event(consumer.ready_fd())
    return delivery


def wait(fd: int) -> None:
    assert select.select([fd], [], [], DEADLINE_S)[0], "nobody wakes"


def some_tensors(seed: int, device: int) -> list[torch.Tensor]:
    generator = torch.Generator(f"cuda:{device}").manual_seed(seed)
    floats = torch.randn(3, 5, 700, device=f"cuda:{device}", generator=generator)
    return [floats.bfloat16(), floats[0], floats.to(torch.uint8), torch.empty(0, 4, device=f"cuda:{device}")]


@pytest.mark.parametrize("device", DEVICES)
def test_tensors_arrive_bit_for_bit_though_their_kernels_are_still_running(stack: contextlib.ExitStack, device: int) -> None:
    producer, consumer = pair(stack, device)
    stream = torch.cuda.Stream(0)  # type: ignore[no-untyped-call]
    for seed in range(40):
        expected = some_tensors(seed, 0)
        stream.wait_stream(torch.cuda.current_stream(0))
        with torch.cuda.stream(stream):
            torch.cuda._sleep(1_000_000)  # type: ignore[no-untyped-call]
            send(producer, expected)
        delivery = receive(consumer)
        for got, want in zip(tensors.read(delivery), expected, strict=True):
            assert got.device == torch.device("cuda", device) and torch.equal(got.cpu(), want.cpu())
        del got
        consumer.release(delivery)


def test_a_view_on_the_same_device_is_the_producers_memory(stack: contextlib.ExitStack) -> None:
    producer, consumer = pair(stack, 0)
    slot = producer.claim()
    assert slot is not None
    producer.publish(slot, ChannelMessage(b"", tensors.write(slot, [torch.ones(4, device="cuda:0")])))
    delivery = receive(consumer)
    assert delivery.data.address == slot.data.address
    consumer.release(delivery)


def test_a_tensor_on_the_wrong_device_is_refused(stack: contextlib.ExitStack) -> None:
    producer, _ = pair(stack, 0)
    slot = producer.claim()
    assert slot is not None
    for device in ["cpu"] + ["cuda:1"] * (len(DEVICES) > 1):
        with pytest.raises(DeviceError, match=r"channel 9, slot 0: .*shape=\(4,\)"):
            tensors.write(slot, [torch.ones(4, device=device)])
    with pytest.raises(LayoutError, match="the slot has 8000000"):
        tensors.write(slot, [torch.ones(3_000_000, device="cuda:0")])
    with pytest.raises(DeviceError, match="cuDeviceGet"):
        open_consumer(fds(create(stack)), 0, 99)


@needs_two
@pytest.mark.parametrize("shard_dim", [0, 1, 2])
def test_shards_of_two_devices_are_seen_whole(stack: contextlib.ExitStack, shard_dim: int) -> None:
    channels = [create(stack, channel_id) for channel_id in (1, 2)]
    producers = [
        stack.enter_context(contextlib.closing(open_producer(fds(channel), device))) for device, channel in enumerate(channels)
    ]
    consumer = open_sharded_consumer([(fds(channel), 0) for channel in channels], 1)
    stack.callback(consumer.close)
    for seed in range(10):
        whole = torch.randn(4, 6, 8, generator=torch.Generator().manual_seed(seed))
        for device, part in enumerate(torch.split(whole, [3, whole.shape[shard_dim] - 3], shard_dim)):
            with torch.cuda.device(device):
                send(
                    producers[device],
                    [part.to(f"cuda:{device}"), torch.full((3,), device, device=f"cuda:{device}")],
                    (shard_dim, None),
                )
        delivery = receive(consumer)
        got, same = tensors.read(delivery)
        assert torch.equal(got.cpu(), whole) and same.tolist() == [0, 0, 0]
        del got, same
        consumer.release(delivery)


def test_device_memory_is_flat_over_channels_of_one_process() -> None:
    def cycle(device: int) -> None:
        with contextlib.ExitStack() as stack:
            producer, consumer = pair(stack, device)
            send(producer, some_tensors(1, 0))
            consumer.release(receive(consumer))

    def footprint() -> tuple[list[int], int]:
        gc.collect()
        torch.cuda.synchronize()
        return [torch.cuda.mem_get_info(device)[0] for device in DEVICES], len(os.listdir("/proc/self/fd"))

    for device in DEVICES:
        cycle(device)
    before = footprint()
    for number in range(200):
        cycle(number % len(DEVICES))
    free, num_fds = footprint()
    # A process that ended before this test may still have been giving back its own.
    assert all(late >= early for early, late in zip(before[0], free, strict=True)) and num_fds == before[1]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("order", list(itertools.permutations(("producer", "consumer", "owner"))), ids=" ".join)
def test_close_in_every_order_frees_the_device(order: tuple[str, ...], device: int) -> None:
    def cycle() -> None:
        with contextlib.ExitStack() as stack:
            channel = create(stack)
            producer, consumer = open_producer(fds(channel), 0), open_consumer(fds(channel), 0, device)
            for _ in range(2):
                send(producer, some_tensors(1, 0))
            held = receive(consumer)
            close = {"producer": producer.close, "consumer": consumer.close, "owner": channel.close}
            for name in order:
                close[name]()
            del held, producer, consumer, close
        gc.collect()

    cycle()
    free = [torch.cuda.mem_get_info(index)[0] for index in DEVICES]
    cycle()
    # A producer that was closed first lets its arena go from a thread, when the consumer has closed.
    wait_until(lambda: all(torch.cuda.mem_get_info(index)[0] >= free[index] for index in DEVICES))


def wait_until(is_so: Callable[[], bool]) -> None:
    tick = threading.Event()
    for _ in range(2000):
        if is_so():
            return
        tick.wait(0.005)
    raise AssertionError("it never came to be")


@pytest.mark.parametrize("device", DEVICES)
def test_interleaved_sessions_keep_their_order_and_a_cancelled_one_is_gone(stack: contextlib.ExitStack, device: int) -> None:
    producer, consumer = pair(stack, device, num_slots=6)
    stream = torch.cuda.Stream(0)  # type: ignore[no-untyped-call]
    seen: dict[int, list[int]] = {1: [], 2: [], 3: []}
    for turn in range(10):
        with torch.cuda.stream(stream):
            torch.cuda._sleep(200_000)  # type: ignore[no-untyped-call]
            for session in (1, 2, 3):
                slot = producer.claim()
                assert slot is not None
                layouts = tensors.write(slot, [torch.full((3,), turn, device="cuda:0")])
                producer.publish(slot, ChannelMessage(b"", layouts, session), stream.cuda_stream)
        if turn == 4:
            producer.discard(2)
        for _ in range(2 if turn == 4 else 3):
            delivery = receive(consumer)
            seen[delivery.message.stream].append(int(tensors.read(delivery)[0][0]))
            consumer.release(delivery)
        wait_until(lambda: consumer.take() is None and producer.num_free == 6)
    assert seen == {1: list(range(10)), 2: [turn for turn in range(10) if turn != 4], 3: list(range(10))}


def test_layouts_beyond_the_slot_are_refused(stack: contextlib.ExitStack) -> None:
    producer, _ = pair(stack, 0)
    slot = producer.claim()
    assert slot is not None
    with pytest.raises(LayoutError, match="channel 9, slot 0"):
        producer.publish(slot, ChannelMessage(b"", (TensorLayout((SLOT_BYTES + 1,), "uint8"),)))
