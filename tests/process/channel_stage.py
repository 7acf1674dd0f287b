"""A channel, its owner, this process's sides and the peers' processes, for one kind of memory."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.process.channel_memory import MEMORIES, SLOT_BYTES, ChannelMemory, read, write
from tests.process.channel_peer import claim

from ithaka.comm_ext.channel.base import Policy
from ithaka.comm_ext.channel.host_shm import HostChannel

WAIT_S = 60
"""Eight processes that make a context on one device at once have taken 14 s to their first word."""


class Peer:
    """A side of the channel in a process of its own. What it writes to stderr fails the test that closes it."""

    def __init__(self, channel: HostChannel, role: str, memory: str, device: int) -> None:
        fds = channel.describe()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.process.channel_peer", role, memory, str(device), *map(str, fds)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=fds,
            bufsize=0,
            pipesize=4096,  # so that a peer can't run far ahead of who listens
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        )
        assert self._process.stdin is not None and self._process.stdout is not None and self._process.stderr is not None
        self._stdin, self._stdout, self._stderr = self._process.stdin, self._process.stdout, self._process.stderr

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

    def leave(self) -> None:
        """End of its stdin: it ends by itself, in silence."""
        self._stdin.close()
        assert self._process.wait(WAIT_S) == 0
        self.kill()

    def kill(self) -> list[str]:
        """SIGKILL, wait until it is gone; returns what it had said and nobody heard."""
        if self._stdout.closed:
            return []
        self._process.kill()
        self._process.wait(WAIT_S)
        unheard = self._stdout.read().decode().splitlines()
        complaints = self._stderr.read().decode()
        for stream in (self._stdin, self._stdout, self._stderr):
            stream.close()
        assert complaints == "", complaints
        return unheard


@dataclass
class Stage:
    """What a scenario plays on. Consumer ``i`` lies on ``devices[i % len(devices)]``, the producer on device 0."""

    memory_name: str
    devices: Sequence[int] = (0,)
    stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    memory: ChannelMemory = field(init=False)
    channel: HostChannel = field(init=False)

    def __post_init__(self) -> None:
        self.memory = MEMORIES[self.memory_name]()

    @property
    def is_on_device(self) -> bool:
        return self.memory_name != "host"

    def create(self, num_consumers: int = 1, num_slots: int = 4, policies: Sequence[Policy] = ()) -> HostChannel:
        self.channel = HostChannel.create(3, num_slots, SLOT_BYTES, num_consumers, policies, on_device=self.is_on_device)
        self.stack.callback(self.channel.close)
        return self.channel

    def device_of(self, index: int) -> int:
        return self.devices[index % len(self.devices)]

    def producer(self) -> Any:
        producer = self.memory.open_producer(self._fds(), 0)
        self.stack.callback(producer.close)
        return producer

    def consumer(self, index: int = 0) -> Any:
        consumer = self.memory.open_consumer(self._fds(), index, self.device_of(index))
        self.stack.callback(consumer.close)
        return consumer

    def start(self, role: str, memory_name: str | None = None) -> Peer:
        """A peer."""
        device = 0 if role == "producer" else self.device_of(int(role))
        peer = Peer(self.channel, role, memory_name or self.memory_name, device)
        self.stack.callback(peer.kill)
        return peer

    def publish(self, producer: Any, number: int) -> int:
        slot = claim(producer)
        sequence: int = producer.publish(slot, write(self.memory, slot, number))
        return sequence

    def take_number(self, consumer: Any) -> int:
        """The next message's number, waited for; it is released."""
        while (delivery := consumer.take()) is None:
            assert select.select([consumer.ready_fd()], [], [], WAIT_S)[0], "nobody wakes"
            os.eventfd_read(consumer.ready_fd())
        number = read(self.memory, delivery)
        consumer.release(delivery)
        return number

    def _fds(self) -> list[int]:
        return [os.dup(fd) for fd in self.channel.describe()]


def on_stage(memory: str, devices: Sequence[int]) -> Iterator[Stage]:
    """A fixture's body."""
    stage = Stage(memory, devices)
    with stage.stack:
        yield stage
