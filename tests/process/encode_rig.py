"""An encode process with its channels, driven as the server and a leader drive it."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

import av
import numpy as np
import numpy.typing as npt

from ithaka.comm_ext.channel.base import ChannelClosedError, ChannelMessage, Delivery, TensorLayout
from ithaka.comm_ext.channel.host_shm import HostChannel, HostConsumer, HostProducer, clear_event
from ithaka.workers import contract, wire
from ithaka.workers.child_socket import ChildSocket
from ithaka.workers.contract import FrameHeader, PacketHeader, Pixels

WAIT_S = 30
FRAMES, PACKETS = 1, 2
BIT_SIDE = 8

Picture = npt.NDArray[np.uint8]
Packet = tuple[PacketHeader, bytes]
R = TypeVar("R", bound=contract.Report)


def picture(number: int, width: int = 128, height: int = 32) -> Picture:
    """I420 with the 16 bits of ``number`` as squares at the top left; the rest a slope that moves with it."""
    planes = np.add.outer(np.arange(height * 3 // 2), np.arange(width)) + 3 * number
    planes = (64 + planes % 128).astype(np.uint8)
    for bit in range(16):
        planes[:BIT_SIDE, bit * BIT_SIDE : (bit + 1) * BIT_SIDE] = 235 if number >> bit & 1 else 16
    return planes


def read_number(frame: Picture) -> int:
    """What ``picture`` wrote, also after a lossy codec."""
    middle = BIT_SIDE // 2
    return sum(1 << bit for bit in range(16) if frame[middle, bit * BIT_SIDE + middle] > 125)


class Encode:
    """The child; ``faults`` as for its ``--fault``."""

    def __init__(
        self,
        *,
        faults: Iterable[str] = (),
        crf: int = 20,
        key_frame_interval_s: float = 2.0,
        live_preset: str = "superfast",
    ) -> None:
        self.control, theirs = ChildSocket.pair()
        fd = theirs.detach()
        arguments = ["--control-fd", str(fd), "--parent-pid", str(os.getpid())]
        for fault in faults:
            arguments += ["--fault", fault]
        self.process = subprocess.Popen(
            [sys.executable, "-m", contract.ENCODE_ENTRY, *arguments], pass_fds=[fd], start_new_session=True
        )
        os.close(fd)
        self.control.send(
            contract.ConfigureEncode(
                name="encode-0",
                crf=crf,
                preset="veryfast",
                key_frame_interval_s=key_frame_interval_s,
                heartbeat_interval_s=0.05,
                log_level="critical",
                live_preset=live_preset,
            )
        )

    def tell(self, *commands: contract.Command) -> None:
        for command in commands:
            self.control.send(command)

    def hear(self, kind: type[R]) -> R:
        """The next report of this kind; only heartbeats may come before it."""
        while True:
            assert select.select([self.control], [], [], WAIT_S)[0], f"no {kind.__name__} came"
            received = self.control.receive()
            assert received is not None, "encode is gone"
            if isinstance(received[0], kind):
                return received[0]
            assert isinstance(received[0], contract.Heartbeat), received[0]

    def attach(self, frames: HostChannel, packets: HostChannel) -> None:
        self.hear(contract.EncodeReady)
        self.control.send(contract.AttachPackets(PACKETS), packets.describe())
        self.control.send(contract.AttachFrames(FRAMES), frames.describe())

    def open(
        self,
        session_id: str,
        width: int = 128,
        height: int = 32,
        fps: int = 16,
        pixels: Pixels = "exact",
        bits_per_s: int = 0,
    ) -> str:
        """The codec string."""
        self.tell(contract.OpenEncoder(session_id, width, height, fps, pixels, bits_per_s))
        opened = self.hear(contract.EncoderOpened)
        assert opened.session_id == session_id
        return opened.codec

    def wait(self) -> int:
        return self.process.wait(WAIT_S)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self.control.close()


class Rig:
    """Frame and packet channel with the leader's and the server's ends."""

    def __init__(self, stack: contextlib.ExitStack, *, num_frame_slots: int = 4, num_packet_slots: int = 64) -> None:
        self._stack = stack
        self.frames = stack.enter_context(contextlib.closing(HostChannel.create(FRAMES, num_frame_slots, 2**17, 1)))
        self.packets = stack.enter_context(contextlib.closing(HostChannel.create(PACKETS, num_packet_slots, 2**14, 1)))
        self.leader = stack.enter_context(contextlib.closing(self.frames.open_producer()))
        self.server = stack.enter_context(contextlib.closing(self.packets.open_consumer(0)))

    def start(self, *, faults: Iterable[str] = (), key_frame_interval_s: float = 2.0, live_preset: str = "superfast") -> Encode:
        encode = Encode(faults=faults, key_frame_interval_s=key_frame_interval_s, live_preset=live_preset)
        self._stack.callback(encode.close)
        encode.attach(self.frames, self.packets)
        return encode

    def publish(self, session_id: str, seq: int, frame: Picture | None = None, header: bytes | None = None) -> None:
        publish_frame(self.leader, session_id, seq, picture(seq) if frame is None else frame, header)

    def take(self) -> Packet:
        """The next packet."""
        delivery = wait_for_delivery(self.server)
        assert delivery is not None, "the packet channel ended"
        return self._read(delivery)

    def take_rest(self) -> list[Packet]:
        """What is in the packet channel, up to its end if it has one."""
        packets = []
        with contextlib.suppress(ChannelClosedError):
            while (delivery := self.server.take()) is not None:
                packets.append(self._read(delivery))
        return packets

    def wait_for_free(self, num_slots: int) -> None:
        """Until encode has given back that many frame slots."""
        wait_for_free(self.leader, num_slots)

    def _read(self, delivery: Delivery) -> Packet:
        (layout,) = delivery.message.tensors
        assert layout.dtype == "uint8" and layout.offset_bytes == 0
        packet = wire.decode_as(PacketHeader, delivery.message.header), bytes(delivery.data[: layout.shape[0]])
        self.server.release(delivery)
        return packet


def publish_frame(leader: HostProducer, session_id: str, seq: int, frame: Picture, header: bytes | None = None) -> None:
    """As a leader does; waits for a slot."""
    wait_for_free(leader, 1)
    slot = leader.claim()
    assert slot is not None
    slot.data[: frame.nbytes] = frame.data.cast("B")
    header = header or wire.encode(
        FrameHeader(session_id, seq, chunk=seq // 4, control_id=seq // 2, pts=seq - 1, generated_ns=time.monotonic_ns())
    )
    leader.publish(slot, ChannelMessage(header, (TensorLayout(frame.shape, "uint8"),)))


def wait_for_free(leader: HostProducer, num_slots: int) -> None:
    while leader.num_free < num_slots:
        assert select.select([leader.free_fd()], [], [], WAIT_S)[0], "no slot came free"
        clear_event(leader.free_fd())


def wait_for_delivery(consumer: HostConsumer) -> Delivery | None:
    """The next message, or None at the end of the channel."""
    with contextlib.suppress(ChannelClosedError):
        while (delivery := consumer.take()) is None:
            assert select.select([consumer.ready_fd()], [], [], WAIT_S)[0], "no message came"
            clear_event(consumer.ready_fd())
        return delivery
    return None


def samples(frame: av.VideoFrame) -> Picture:
    """A decoded frame as I420."""
    return frame.to_ndarray().astype(np.uint8, copy=False)


def decode(packets: Iterable[Packet]) -> Iterator[av.VideoFrame]:
    """Frames of one session's packets, of which the first is a key frame."""
    decoder = av.VideoCodecContext.create("h264", "r")
    for _, data in packets:
        yield from decoder.decode(av.Packet(data))
    yield from decoder.decode(None)


def by_session(packets: Iterable[Packet]) -> dict[str, list[Packet]]:
    sessions: dict[str, list[Packet]] = {}
    for packet in packets:
        sessions.setdefault(packet[0].session_id, []).append(packet)
    return sessions
