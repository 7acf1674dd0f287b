"""When a producer's device memory may go: the words, and processes that end without a word."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from ithaka.comm_ext.channel import host_shm
from ithaka.comm_ext.channel.base import ChannelClosedError, ChannelError, ChannelMessage
from ithaka.comm_ext.channel.device_card import DeviceCard
from ithaka.comm_ext.channel.device_control import DeviceControl, is_alive
from ithaka.comm_ext.channel.host_shm import HostChannel

CARD = DeviceCard(77, 2**40, bytes(range(16)), bytes(range(64)))
DEADLINE_S = 20


@pytest.fixture
def stack() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as stack:
        yield stack


def create(stack: contextlib.ExitStack) -> tuple[HostChannel, DeviceControl]:
    channel = HostChannel.create(9, 2, 4096, 2, on_device=True)
    stack.callback(channel.close)
    return channel, open_control(stack, channel)


def open_control(stack: contextlib.ExitStack, channel: HostChannel) -> DeviceControl:
    control = DeviceControl([os.dup(fd) for fd in channel.describe()])
    stack.callback(control.close)
    return control


def pretend(channel: HostChannel, control: DeviceControl, consumer: int, pid: int) -> None:
    """As if process ``pid`` had the memory mapped."""
    os.pwrite(channel.describe()[0], pid.to_bytes(8, "little"), 8 * control.geometry.mapped_word(consumer))


def test_a_card_comes_back_equal_and_once(stack: contextlib.ExitStack) -> None:
    channel, control = create(stack)
    with pytest.raises(ChannelClosedError, match="channel 9"):
        control.begin_mapping(0)
    control.hand_out(CARD)
    assert open_control(stack, channel).begin_mapping(0) == CARD
    with pytest.raises(ChannelError, match="channel 9 had a producer"):
        control.hand_out(CARD)
    with pytest.raises(ChannelError, match="the card has 3 bytes"):
        DeviceCard.decode(b"abc")


def test_memory_stays_while_it_is_mapped_and_nobody_maps_what_is_gone(stack: contextlib.ExitStack) -> None:
    _, control = create(stack)
    control.hand_out(CARD)
    control.begin_mapping(0)
    control.begin_mapping(1)
    control.end_mapping(0)
    assert not control.take_back()
    control.begin_mapping(0)
    control.end_mapping(0)
    control.end_mapping(1)
    assert control.take_back()
    with pytest.raises(ChannelClosedError, match="memory is gone"):
        control.begin_mapping(0)
    assert control.take_back()


def test_memory_stays_while_a_message_may_be_read(stack: contextlib.ExitStack) -> None:
    channel, control = create(stack)
    control.hand_out(CARD)
    producer = host_shm.open_producer([os.dup(fd) for fd in channel.describe()], on_device=True)
    slot = producer.claim()
    assert slot is not None
    producer.publish(slot, ChannelMessage(b"", ()))
    producer.close()
    assert not control.take_back()
    channel.drop_consumer(0)
    assert not control.take_back()
    channel.drop_consumer(1)
    assert control.take_back()


def test_a_process_that_ended_maps_nothing(stack: contextlib.ExitStack) -> None:
    channel, control = create(stack)
    control.hand_out(CARD)
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    assert child.stdin is not None
    pretend(channel, control, 1, child.pid)
    assert is_alive(child.pid) and not control.take_back()
    returned = threading.Event()

    def wait() -> None:
        while not control.take_back():
            control.wait_for_change()
        returned.set()

    threading.Thread(target=wait, daemon=True).start()
    child.kill()
    assert returned.wait(DEADLINE_S)
    assert not is_alive(child.pid), "it ended, though nobody has waited for it"
    child.wait()
    assert not is_alive(child.pid)
    child.stdin.close()


def test_a_mapping_that_ends_wakes_who_waits(stack: contextlib.ExitStack) -> None:
    _, control = create(stack)
    control.hand_out(CARD)
    control.begin_mapping(0)
    control.end_mapping(0)
    control.wait_for_change()
    assert control.take_back()
