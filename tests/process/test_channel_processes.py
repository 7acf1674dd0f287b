"""Real processes at both ends of a channel, killed and stopped wherever it hurts."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.process.channel_peer import ITEMS, claim, deliveries, read, take_all, write

from ithaka.comm_ext.channel.base import ChannelClosedError
from ithaka.comm_ext.channel.host_shm import HostChannel, clear_event

PEER = Path(__file__).with_name("channel_peer.py")
SLOT_BYTES = 4 * ITEMS
WAIT_S = 30


class Peer:
    """A side of the channel in a process of its own."""

    def __init__(self, channel: HostChannel, role: str) -> None:
        fds = channel.describe()
        self._process = subprocess.Popen(
            [sys.executable, str(PEER), role, *map(str, fds)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=fds,
            bufsize=0,
            pipesize=4096,  # so that a peer can't run far ahead of who listens
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._stdin, self._stdout = self._process.stdin, self._process.stdout

    def tell(self, line: str) -> None:
        self._stdin.write(line.encode() + b"\n")

    def hear(self) -> str:
        assert select.select([self._stdout], [], [], WAIT_S)[0], "the peer is silent"
        return self._stdout.readline().decode().strip()

    def ask(self, line: str) -> str:
        self.tell(line)
        return self.hear()

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)
        if number is signal.SIGSTOP:
            os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WNOWAIT)

    def kill(self) -> list[str]:
        """SIGKILL, wait until it is gone; returns what it had said and nobody heard."""
        if self._stdout.closed:
            return []
        self._process.kill()
        self._process.wait(WAIT_S)
        unheard = self._stdout.read().decode().splitlines()
        self._stdin.close()
        self._stdout.close()
        return unheard


@pytest.fixture
def stack() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as stack:
        yield stack


def create(stack: contextlib.ExitStack, num_consumers: int = 1, num_slots: int = 4) -> HostChannel:
    return stack.enter_context(contextlib.closing(HostChannel.create(3, num_slots, SLOT_BYTES, num_consumers)))


def start(stack: contextlib.ExitStack, channel: HostChannel, role: str) -> Peer:
    peer = Peer(channel, role)
    stack.callback(peer.kill)
    return peer


def test_three_consumers_at_different_speeds(stack: contextlib.ExitStack) -> None:
    channel = create(stack, num_consumers=3)
    producer = stack.enter_context(contextlib.closing(channel.open_producer()))
    peers = [start(stack, channel, str(index)) for index in range(3)]
    peers[0].tell("stream")
    for number in range(1, 31):
        slot = claim(producer)
        producer.publish(slot, write(slot, number))
        assert peers[0].hear() == f"{number} {number}"
        assert peers[1].ask("take") == f"{number} {number}"
        assert peers[1].ask("release") == "released"
        if number % 3 == 0:
            for late in range(number - 2, number + 1):
                assert peers[2].ask("take") == f"{late} {late}"
                assert peers[2].ask("release") == "released"
    producer.close()
    assert peers[0].hear() == "end"
    assert [peer.ask("take") for peer in peers[1:]] == ["end", "end"]


@pytest.mark.parametrize("steps", [["claim"], ["claim", "write 3"]], ids=["claimed", "written"])
def test_a_producer_killed_between_claim_and_publish(stack: contextlib.ExitStack, steps: list[str]) -> None:
    channel = create(stack)
    consumer = stack.enter_context(contextlib.closing(channel.open_consumer(0)))
    producer = start(stack, channel, "producer")
    assert producer.ask("stream 1 2") == "streamed"
    for step in steps:
        producer.ask(step)
    producer.kill()
    channel.close_producer()
    assert take_all(consumer) == [(1, 1), (2, 2)]


def test_a_producer_stopped_between_claim_and_publish(stack: contextlib.ExitStack) -> None:
    channel = create(stack)
    consumer = stack.enter_context(contextlib.closing(channel.open_consumer(0)))
    producer = start(stack, channel, "producer")
    assert producer.ask("stream 1 1") == "streamed"
    producer.ask("claim")
    producer.ask("write 2")
    producer.signal(signal.SIGSTOP)
    producer.tell("publish")
    first = consumer.take()
    assert first is not None and read(first) == 1
    consumer.release(first)
    assert consumer.take() is None
    clear_event(consumer.ready_fd())
    producer.signal(signal.SIGCONT)
    assert producer.hear() == "published 2"
    assert select.select([consumer.ready_fd()], [], [], WAIT_S)[0]
    second = consumer.take()
    assert second is not None and read(second) == 2
    consumer.release(second)


def test_a_producer_killed_in_full_flight_is_succeeded(stack: contextlib.ExitStack) -> None:
    channel = create(stack)
    consumer = stack.enter_context(contextlib.closing(channel.open_consumer(0)))
    seen: list[int] = []
    stream = deliveries(consumer)
    for _ in range(4):
        producer = start(stack, channel, "producer")
        next_number = len(seen) + 1
        producer.tell(f"stream {next_number} 100000")
        for delivery in stream:
            seen.append(read(delivery))
            consumer.release(delivery)
            if len(seen) == next_number + 60:
                break
        producer.kill()
        while (left_over := consumer.take()) is not None:
            seen.append(read(left_over))
            consumer.release(left_over)
    assert seen == list(range(1, len(seen) + 1))
    channel.close_producer()
    with pytest.raises(ChannelClosedError):
        consumer.take()


def test_a_consumer_killed_while_holding_is_dropped(stack: contextlib.ExitStack) -> None:
    channel = create(stack, num_consumers=2, num_slots=2)
    producer = stack.enter_context(contextlib.closing(channel.open_producer()))
    living = stack.enter_context(contextlib.closing(channel.open_consumer(1)))
    dead = start(stack, channel, "0")
    for number in (1, 2):
        slot = claim(producer)
        producer.publish(slot, write(slot, number))
    assert dead.ask("take") == "1 1"
    for number in (1, 2):
        delivery = living.take()
        assert delivery is not None and read(delivery) == number
        living.release(delivery)
    dead.kill()
    assert producer.claim() is None
    clear_event(producer.free_fd())
    channel.drop_consumer(0)
    assert select.select([producer.free_fd()], [], [], 0)[0]
    assert producer.num_free == 2


def test_a_consumer_stopped_while_holding_holds_the_producer_only(stack: contextlib.ExitStack) -> None:
    channel = create(stack, num_consumers=2, num_slots=2)
    producer = stack.enter_context(contextlib.closing(channel.open_producer()))
    living = stack.enter_context(contextlib.closing(channel.open_consumer(1)))
    stopped = start(stack, channel, "0")
    for number in (1, 2):
        slot = claim(producer)
        producer.publish(slot, write(slot, number))
    assert stopped.ask("take") == "1 1"
    stopped.signal(signal.SIGSTOP)
    for number in (1, 2):
        delivery = living.take()
        assert delivery is not None and read(delivery) == number
        living.release(delivery)
    assert producer.claim() is None
    stopped.tell("release")
    clear_event(producer.free_fd())
    stopped.signal(signal.SIGCONT)
    assert stopped.hear() == "released"
    assert select.select([producer.free_fd()], [], [], WAIT_S)[0]
    assert producer.num_free == 1


def test_a_consumer_killed_in_full_flight_is_succeeded_without_a_gap(stack: contextlib.ExitStack) -> None:
    channel = create(stack)
    producer = start(stack, channel, "producer")
    producer.tell("stream 1 2500")
    seen: list[int] = []

    def see(number: int) -> None:
        # What was taken and not released comes again; nothing is left out.
        assert len(seen) - 4 < number <= len(seen) + 1
        seen[number - 1 :] = [number]

    for _ in range(4):
        consumer = start(stack, channel, "0")
        consumer.tell("stream")
        lines = [consumer.hear() for _ in range(50)]
        lines += consumer.kill()
        for line in lines:
            see(int(line.split()[1]))
    with contextlib.closing(channel.open_consumer(0)) as last:
        for delivery in deliveries(last):
            see(read(delivery))
            last.release(delivery)
            if seen[-1] == 2500:
                break
    assert producer.hear() == "streamed"
    assert seen == list(range(1, 2501))
