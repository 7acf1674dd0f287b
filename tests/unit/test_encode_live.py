"""Encoding for live delivery: the newest frame wins, each loss has its number, and each access unit names its frame."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from typing import cast

import av
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ithaka.workers import contract
from ithaka.workers.child_socket import ChildSocket
from ithaka.workers.contract import FrameHeader, PacketHeader
from ithaka.workers.encoding.encoder import H264Encoder, StreamSettings
from ithaka.workers.encoding.frame_channel import FrameTask
from ithaka.workers.encoding.frame_number import read_frame_number, with_frame_number
from ithaka.workers.encoding.heartbeats import Heartbeats
from ithaka.workers.encoding.packet_channel import PacketChannel
from ithaka.workers.encoding.session import EncodeSession
from ithaka.workers.encoding.still import Still
from ithaka.workers.encoding.vp8 import Vp8Encoder
from ithaka.workers.fault import FaultPoints

WIDTH, HEIGHT, FPS = 128, 64, 16
DEADLINE_S = 20


class Task:
    """A taken frame of noise."""

    def __init__(self, seq: int) -> None:
        self.header = FrameHeader("a", seq, 0, 7, seq - 1, 1000 + seq)
        self.is_published: bool | None = None

    def i420(self, width: int, height: int) -> memoryview:
        rng = np.random.default_rng(self.header.seq)
        return rng.integers(0, 256, (height * 3 // 2, width), np.uint8).data.cast("B")

    def finish(self, *, is_published: bool) -> None:
        self.is_published = is_published


class Packets:
    """Holds the encoder's thread up in its first packet until ``gate`` is opened."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.is_held = threading.Event()
        self.published: queue.Queue[tuple[PacketHeader, bytes]] = queue.Queue()

    def publish(self, header: PacketHeader, data: memoryview) -> None:
        self.is_held.set()
        assert self.gate.wait(DEADLINE_S)
        self.published.put((header, bytes(data)))

    def take(self, count: int) -> list[tuple[PacketHeader, bytes]]:
        return [self.published.get(timeout=DEADLINE_S) for _ in range(count)]


class Rig:
    def __init__(self, max_waiting_frames: int, bits_per_s: int = 500_000) -> None:
        self._ours, theirs = ChildSocket.pair()
        self._theirs = theirs
        self.packets = Packets()
        self.reports: queue.Queue[contract.Report] = queue.Queue()
        self.session = EncodeSession(
            "a",
            StreamSettings(WIDTH, HEIGHT, FPS, "lossy", 20, "ultrafast", 2.0, bits_per_s),
            cast(PacketChannel, self.packets),
            self.reports.put,
            Heartbeats(theirs, 60.0),
            FaultPoints.parse([]),
            max_waiting_frames=max_waiting_frames,
        )
        self.session.start()

    def submit_behind_a_slow_one(self, count: int) -> list[Task]:
        """The first is in hand while all others come to wait."""
        tasks = [Task(seq) for seq in range(1, count + 1)]
        self.session.submit(cast(FrameTask, tasks[0]))
        assert self.packets.is_held.wait(DEADLINE_S)
        for task in tasks[1:]:
            self.session.submit(cast(FrameTask, task))
        self.packets.gate.set()
        return tasks

    def close(self) -> None:
        self.packets.gate.set()
        self.session.finish()
        self.session.join()
        self._ours.close()
        self._theirs.close()


@pytest.fixture
def rigs() -> Iterator[list[Rig]]:
    made: list[Rig] = []
    yield made
    for rig in made:
        rig.close()


def test_the_oldest_that_wait_are_dropped_and_named(rigs: list[Rig]) -> None:
    rigs.append(rig := Rig(max_waiting_frames=4))
    tasks = rig.submit_behind_a_slow_one(11)
    packets = rig.packets.take(11)
    assert [header.seq for header, _ in packets] == list(range(1, 12)), "every number comes, in order"
    assert [header.seq for header, _ in packets if header.dropped] == [2, 3, 4, 5, 6], "behind each, more than four waited"
    assert all((not data) == header.dropped for header, data in packets)
    rig.session.finish()
    rig.session.join()
    assert all(task.is_published for task in tasks), "every slot is given back"


def test_without_a_bound_all_wait(rigs: list[Rig]) -> None:
    rigs.append(rig := Rig(max_waiting_frames=0))
    rig.submit_behind_a_slow_one(11)
    assert not any(header.dropped for header, _ in rig.packets.take(11))


def test_a_requested_key_frame_outlives_a_drop(rigs: list[Rig]) -> None:
    rigs.append(rig := Rig(max_waiting_frames=2))
    rig.session.submit(cast(FrameTask, Task(1)))
    assert rig.packets.is_held.wait(DEADLINE_S)
    rig.session.request_key_frame()
    for seq in range(2, 7):
        rig.session.submit(cast(FrameTask, Task(seq)))
    rig.packets.gate.set()
    packets = rig.packets.take(6)
    first_encoded = next(header for header, _ in packets[1:] if not header.dropped)
    assert first_encoded.key and first_encoded.seq == 4


def test_each_access_unit_names_its_frame(rigs: list[Rig]) -> None:
    rigs.append(rig := Rig(max_waiting_frames=0))
    rig.submit_behind_a_slow_one(3)
    for header, data in rig.packets.take(3):
        assert read_frame_number(data) == (header.seq, 7, 1000 + header.seq)


def test_a_constant_rate_follows_a_new_one() -> None:
    encoder = H264Encoder(StreamSettings(320, 192, FPS, "lossy", 20, "ultrafast", 60.0, 2_000_000))
    rng = np.random.default_rng(1)

    def bits_of_a_frame(first_pts: int) -> float:
        units = [
            encoder.encode(rng.integers(0, 256, (288, 320), np.uint8).data.cast("B"), pts, is_key=False).data.nbytes
            for pts in range(first_pts, first_pts + 64)
        ]
        return 8 * sum(units[32:]) / 32

    before = bits_of_a_frame(0)
    encoder.set_bitrate(700_000)
    after = bits_of_a_frame(64)
    assert 0.5 < before * FPS / 2_000_000 < 1.5
    assert 0.5 < after * FPS / 700_000 < 1.5


@settings(deadline=None)
@given(st.integers(0, 2**53), st.integers(0, 2**53), st.integers(0, 2**63), st.sampled_from((1, 5)), st.booleans())
def test_numbers_survive_and_stand_before_the_first_slice(
    seq: int, control_id: int, generated_ns: int, kind: int, is_long: bool
) -> None:
    start = b"\x00\x00\x00\x01" if is_long else b"\x00\x00\x01"
    headers, picture = (
        b"\x00\x00\x00\x01\x67abc\x00\x00\x01\x68de",
        start + bytes((0x60 | kind,)) + b"slice\x00\x00\x01\x41more",
    )
    numbered = bytes(
        with_frame_number(memoryview(headers + picture), seq=seq, control_id=control_id, generated_ns=generated_ns)
    )
    assert numbered.startswith(headers) and numbered.endswith(picture)
    assert read_frame_number(numbered) == (seq, control_id, generated_ns)
    sei = numbered[len(headers) : -len(picture)]
    assert b"\x00\x00" not in sei[4:], "nothing needs escaping"


def test_an_access_unit_without_slice_is_refused() -> None:
    with pytest.raises(ValueError, match="no slice"):
        with_frame_number(memoryview(b"\x00\x00\x00\x01\x67abc"), seq=1, control_id=0, generated_ns=0)
    assert read_frame_number(b"\x00\x00\x00\x01\x67abc") is None


def vp8_of(packets: list[tuple[PacketHeader, bytes]]) -> list[tuple[PacketHeader, bytes]]:
    return [(header, data) for header, data in packets if header.codec == "vp8"]


def test_vp8_comes_beside_h264_only_while_it_is_asked_for(rigs: list[Rig]) -> None:
    rigs.append(rig := Rig(max_waiting_frames=0))
    rig.packets.gate.set()
    rig.session.submit(cast(FrameTask, Task(1)))
    assert [header.codec for header, _ in rig.packets.take(1)] == ["h264"]
    rig.session.vp8.open(500_000)
    for seq in (2, 3, 4):
        rig.session.submit(cast(FrameTask, Task(seq)))
    packets: list[tuple[PacketHeader, bytes]] = []
    while not packets or (packets[-1][0].seq, packets[-1][0].codec) != (4, "vp8"):
        packets += rig.packets.take(1)
    assert [header.seq for header, _ in packets if header.codec == "h264"] == [2, 3, 4]
    # The first frame may still have been in hand when VP8 was asked for.
    seqs = [header.seq for header, _ in vp8_of(packets)]
    assert seqs in ([2, 3, 4], [1, 2, 3, 4])
    assert [header.key for header, _ in vp8_of(packets)] == [seq == seqs[0] for seq in seqs]
    decoder = av.VideoCodecContext.create("vp8", "r")
    pictures = [picture for _, data in vp8_of(packets) for picture in decoder.decode(av.Packet(data))]
    assert [(picture.width, picture.height) for picture in pictures] == [(WIDTH, HEIGHT)] * len(seqs)
    rig.session.vp8.close()
    rig.session.submit(cast(FrameTask, Task(5)))
    assert [header.codec for header, _ in rig.packets.take(1)] == ["h264"]


def test_key_frames_of_the_two_codecs_are_asked_for_apart(rigs: list[Rig]) -> None:
    rigs.append(rig := Rig(max_waiting_frames=0))
    rig.packets.gate.set()
    rig.session.vp8.open(500_000)
    for seq, codec in ((1, None), (2, "vp8"), (3, "h264"), (4, None)):
        if codec is not None:
            rig.session.request_key_frame(codec)  # type: ignore[arg-type]
        rig.session.submit(cast(FrameTask, Task(seq)))
        packets = {header.codec: header.key for header, _ in rig.packets.take(2)}
        assert packets == {"h264": seq in (1, 3), "vp8": seq in (1, 2)}


def test_who_asks_in_vp8_where_no_frame_follows_gets_the_picture_that_stands(rigs: list[Rig]) -> None:
    rigs.append(rig := Rig(max_waiting_frames=0, bits_per_s=4_000_000))
    rig.packets.gate.set()
    tasks = [Task(seq) for seq in (1, 2, 3)]
    for task in tasks:
        rig.session.submit(cast(FrameTask, task))
    rig.packets.take(3)
    rig.session.vp8.open(4_000_000)
    decoder = av.VideoCodecContext.create("vp8", "r")
    for _ in range(2):
        rig.session.request_key_frame("vp8")
        ((header, data),) = rig.packets.take(1)
        assert (header.codec, header.seq, header.pts, header.key, header.dropped) == ("vp8", 3, 2, True, False)
        (picture,) = decoder.decode(av.Packet(data))
        shown = picture.to_ndarray(format="yuv420p")[:HEIGHT].ravel().astype(float)
        luma = [np.frombuffer(task.i420(WIDTH, HEIGHT), np.uint8)[: HEIGHT * WIDTH].astype(float) for task in tasks]
        alike = [np.corrcoef(shown, sent)[0, 1] for sent in luma]
        assert alike[2] > 0.9 > 0.1 > max(alike[:2])
    rig.session.submit(cast(FrameTask, Task(4)))
    keys = {header.codec: header.key for header, _ in rig.packets.take(2)}
    assert keys == {"h264": False, "vp8": True}, "for those who saw frame 3 when it came"


@pytest.mark.parametrize("is_on", [True, False])
def test_a_wish_for_a_picture_where_there_is_none_waits_for_one(
    rigs: list[Rig], monkeypatch: pytest.MonkeyPatch, is_on: bool
) -> None:
    has_looked = threading.Event()
    encode_again = EncodeSession._encode_again

    def look(session: EncodeSession, still: Still) -> None:
        encode_again(session, still)
        has_looked.set()

    monkeypatch.setattr(EncodeSession, "_encode_again", look)
    rigs.append(rig := Rig(max_waiting_frames=0))
    rig.packets.gate.set()
    if is_on:
        rig.session.vp8.open(500_000)
    else:
        rig.session.submit(cast(FrameTask, Task(1)))
        rig.packets.take(1)
    rig.session.request_key_frame("vp8")
    assert has_looked.wait(DEADLINE_S)
    rig.session.submit(cast(FrameTask, Task(2)))
    assert [(header.codec, header.key) for header, _ in rig.packets.take(1 + is_on)] == [("h264", is_on), ("vp8", True)][
        : 1 + is_on
    ]


def test_a_vp8_encoder_that_fails_takes_nothing_with_it(rigs: list[Rig], monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Vp8Encoder, settings: StreamSettings, bits_per_s: int) -> None:
        raise ValueError("no such codec")

    monkeypatch.setattr(Vp8Encoder, "__init__", broken)
    rigs.append(rig := Rig(max_waiting_frames=0))
    rig.packets.gate.set()
    rig.session.vp8.open(500_000)
    for seq in (1, 2):
        rig.session.submit(cast(FrameTask, Task(seq)))
    assert [header.codec for header, _ in rig.packets.take(2)] == ["h264", "h264"]
