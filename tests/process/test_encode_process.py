"""The encode process end to end: frames through real channels, packets decoded again."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.process.encode_rig import (
    FRAMES,
    Encode,
    Rig,
    by_session,
    decode,
    picture,
    read_number,
    samples,
    wait_for_delivery,
)

from ithaka.workers import contract, wire
from ithaka.workers.contract import Pixels
from ithaka.workers.encoding.codec_string import codec_string


@pytest.fixture
def stack() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as stack:
        yield stack


@pytest.fixture
def rig(stack: contextlib.ExitStack) -> Rig:
    return Rig(stack)


def test_exact_frames_of_several_sessions_come_back_bit_for_bit(rig: Rig) -> None:
    encode = rig.start(key_frame_interval_s=1.0)
    sizes = {"a": (128, 32), "b": (160, 96), "c": (130, 34)}
    for session_id, size in sizes.items():
        assert encode.open(session_id, *size, fps=16).startswith("avc1.F4")
    published_ns = time.monotonic_ns()
    packets = []
    for seq in range(1, 41):
        for session_id, size in sizes.items():
            rig.publish(session_id, seq, picture(seq, *size))
        packets += [rig.take() for _ in sizes]
    sessions = by_session(packets)
    assert set(sessions) == set(sizes)
    for session_id, packets in sessions.items():
        headers = [header for header, _ in packets]
        assert [header.seq for header in headers] == list(range(1, 41))
        assert [header.seq for header in headers if header.key] == [1, 17, 33]
        for header in headers:
            assert (header.chunk, header.control_id, header.pts) == (header.seq // 4, header.seq // 2, header.seq - 1)
            assert published_ns <= header.generated_ns <= header.encoded_ns
        for seq, frame in enumerate(decode(packets), start=1):
            assert (samples(frame) == picture(seq, *sizes[session_id])).all()
    rig.wait_for_free(4)


def test_lossy_frames_are_close_and_tagged(rig: Rig) -> None:
    encode = rig.start()
    codec = encode.open("a", pixels="lossy")
    for seq in range(1, 31):
        rig.publish("a", seq)
    packets = [rig.take() for _ in range(30)]
    assert codec == codec_string(packets[0][1])
    frames = list(decode(packets))
    assert len(frames) == 30
    for seq, frame in enumerate(frames, start=1):
        assert read_number(samples(frame)) == seq
        assert np.abs(samples(frame).astype(int) - picture(seq)).mean() < 6
        tags = (frame.color_range, frame.colorspace, frame.color_primaries, frame.color_trc)
        assert tags == (1, 1, 1, 1)  # limited range, BT.709


@pytest.mark.parametrize(("bits_per_s", "motion_search"), [(0, b"subme=2"), (500_000, b"subme=0")])
def test_streams_at_a_constant_rate_have_a_preset_of_their_own(rig: Rig, bits_per_s: int, motion_search: bytes) -> None:
    encode = rig.start(live_preset="ultrafast")
    encode.open("a", pixels="lossy", bits_per_s=bits_per_s)
    rig.publish("a", 1)
    # x264 writes its own settings in front of the first picture.
    assert motion_search in rig.take()[1]


def test_a_key_frame_on_request(rig: Rig) -> None:
    encode = rig.start()
    for session_id in ("a", "b"):
        encode.open(session_id)
    for seq in range(1, 4):
        rig.publish("a", seq)
        rig.publish("b", seq)
    first = [rig.take() for _ in range(6)]
    encode.tell(contract.RequestKeyFrame("b"), contract.RequestKeyFrame("nobody"))
    for seq in range(4, 7):
        rig.publish("a", seq)
        rig.publish("b", seq)
    sessions = by_session(first + [rig.take() for _ in range(6)])
    assert {name: [header.seq for header, _ in packets if header.key] for name, packets in sessions.items()} == {
        "a": [1],
        "b": [1, 4],
    }
    later = [packet for packet in sessions["b"] if packet[0].seq >= 4]
    assert [read_number(samples(frame)) for frame in decode(later)] == [4, 5, 6]


@pytest.mark.parametrize("pixels", ["lossy", "exact"])
@pytest.mark.parametrize(("width", "height", "fps"), [(127, 32, 16), (128, 31, 16), (8, 8, 16), (128, 32, 0), (8192, 32, 16)])
def test_a_stream_that_cannot_be_is_refused_alone(width: int, height: int, fps: int, pixels: Pixels, rig: Rig) -> None:
    encode = rig.start()
    encode.tell(contract.OpenEncoder("bad", width, height, fps, pixels))
    failed = encode.hear(contract.EncoderFailed)
    assert (failed.session_id, failed.code) == ("bad", "encoder_size_unsupported")
    encode.open("good")
    rig.publish("bad", 1)
    rig.publish("good", 1)
    assert rig.take()[0].session_id == "good"
    rig.wait_for_free(4)
    assert rig.take_rest() == []


def test_a_second_encoder_for_a_session_is_refused(rig: Rig) -> None:
    encode = rig.start()
    encode.open("a")
    encode.tell(contract.OpenEncoder("a", 64, 64, 16, "exact"))
    assert encode.hear(contract.EncoderFailed).code == "encoder_exists"
    rig.publish("a", 1)
    assert rig.take()[0].seq == 1


def test_an_encoder_before_the_packet_channel_is_refused(stack: contextlib.ExitStack) -> None:
    encode = Encode()
    stack.callback(encode.close)
    encode.hear(contract.EncodeReady)
    encode.tell(contract.OpenEncoder("a", 64, 64, 16, "exact"))
    assert encode.hear(contract.EncoderFailed).code == "encoder_open_failed"


@pytest.mark.parametrize(
    ("bad_seq", "bad_frame", "code"),
    [
        (3, picture(3, 128, 64), "frame_layout_mismatch"),
        (3, picture(3).astype(np.uint8)[:, :64], "frame_layout_mismatch"),
        (2, picture(2), "frame_out_of_order"),
        (1, picture(1), "frame_out_of_order"),
    ],
    ids=["another size", "half a frame", "the same seq", "an earlier seq"],
)
def test_a_frame_that_does_not_fit_its_stream_fails_it_alone(
    rig: Rig, bad_seq: int, bad_frame: np.ndarray[tuple[int, int], np.dtype[np.uint8]], code: str
) -> None:
    encode = rig.start()
    encode.open("bad")
    encode.open("good")
    for session_id in ("bad", "good"):
        for seq in (1, 2):
            rig.publish(session_id, seq)
    rig.publish("bad", bad_seq, np.ascontiguousarray(bad_frame))
    rig.publish("bad", 4)
    rig.publish("good", 3)
    failed = encode.hear(contract.EncoderFailed)
    assert (failed.session_id, failed.code) == ("bad", code)
    sessions = by_session(rig.take() for _ in range(5))
    assert {name: [header.seq for header, _ in packets] for name, packets in sessions.items()} == {
        "bad": [1, 2],
        "good": [1, 2, 3],
    }
    rig.wait_for_free(4)
    assert rig.take_rest() == []
    # The name is free again after a close.
    encode.tell(contract.CloseEncoder("bad"))
    encode.open("bad")
    rig.publish("bad", 1)
    assert rig.take()[0].key


def test_a_packet_beyond_its_slot_fails_the_stream_alone(rig: Rig) -> None:
    encode = rig.start()
    encode.open("big", 320, 240)
    encode.open("small")
    rig.publish("big", 1, np.random.default_rng(0).integers(0, 256, (360, 320), np.uint8))
    failed = encode.hear(contract.EncoderFailed)
    assert (failed.session_id, failed.code) == ("big", "packet_too_large")
    rig.publish("small", 1)
    assert rig.take()[0].session_id == "small"


def test_frames_of_an_unknown_session_and_unreadable_ones_are_released(rig: Rig) -> None:
    encode = rig.start()
    encode.open("a")
    for seq in range(1, 10):
        rig.publish("nobody", seq)
    rig.publish("a", 1, header=b"no header")
    rig.publish("a", 1, header=wire.encode(contract.Shutdown()))
    rig.publish("a", 1)
    assert rig.take()[0].seq == 1
    rig.wait_for_free(4)
    assert rig.take_rest() == []


def test_a_full_packet_channel_holds_the_frames_and_loses_none(stack: contextlib.ExitStack) -> None:
    rig = Rig(stack, num_packet_slots=2)
    encode = rig.start()
    encode.open("a")
    encode.open("b")
    for seq in (1, 2):
        rig.publish("a", seq)
        rig.publish("b", seq)
    first = wait_for_delivery(rig.server)  # held, so that at most one more packet fits
    second = wait_for_delivery(rig.server)
    assert first is not None and second is not None and rig.server.take() is None
    rig.wait_for_free(2)
    rig.publish("a", 3)
    rig.publish("b", 3)
    assert rig.leader.claim() is None
    rig.server.release(first)
    rig.server.release(second)
    assert len([rig.take() for _ in range(4)]) == 4
    rig.wait_for_free(4)


def test_close_discards_what_waits_and_frees_the_slots(stack: contextlib.ExitStack) -> None:
    rig = Rig(stack, num_packet_slots=1)
    encode = rig.start()
    encode.open("a")
    for seq in (1, 2, 3, 4):
        rig.publish("a", seq)
    held = wait_for_delivery(rig.server)
    assert held is not None
    while (beat := encode.hear(contract.Heartbeat)).progress != 1 or not beat.busy:
        pass  # until frame 2 is in hand, which then waits for the only packet slot
    encode.tell(contract.CloseEncoder("a"))
    rig.wait_for_free(3)
    rig.server.release(held)
    rig.wait_for_free(4)
    assert [header.seq for header, _ in rig.take_rest()] == [2]


@pytest.mark.parametrize("end", ["closed", "killed", "closed long before"])
def test_drained_comes_after_the_last_packet(rig: Rig, end: str) -> None:
    encode = rig.start()
    encode.open("a")
    encode.open("b")
    encode.open("idle")
    for seq in (1, 2, 3):
        rig.publish("a", seq)
        rig.publish("b", seq)
    rig.publish("b", 4)
    if end == "killed":
        rig.wait_for_free(1)
        assert rig.leader.claim() is not None  # and dies with it
        rig.frames.close_producer()
    else:
        rig.leader.close()
    if end == "closed long before":
        assert len([rig.take() for _ in range(7)]) == 7
    encode.tell(contract.DetachFrames(FRAMES))
    drained = encode.hear(contract.FramesDrained)
    assert drained == contract.FramesDrained(FRAMES, {"a": 3, "b": 4})
    if end != "closed long before":
        assert {name: len(packets) for name, packets in by_session(rig.take_rest()).items()} == {"a": 3, "b": 4}


def test_a_killed_leaders_frames_all_go_out_and_the_next_leader_is_attached(stack: contextlib.ExitStack, rig: Rig) -> None:
    encode = rig.start()
    encode.open("a")
    leader = subprocess.Popen(
        [sys.executable, "-m", "tests.process.encode_leader", "a", *map(str, rig.frames.describe())],
        pass_fds=rig.frames.describe(),
        cwd=Path(__file__).parents[2],
    )
    stack.callback(leader.wait)
    stack.callback(leader.kill)
    packets = [rig.take() for _ in range(25)]
    leader.send_signal(signal.SIGSTOP)
    leader.kill()
    leader.wait()
    rig.frames.close_producer()
    encode.tell(contract.DetachFrames(FRAMES))
    drained = encode.hear(contract.FramesDrained)
    packets += rig.take_rest()
    assert [header.seq for header, _ in packets] == list(range(1, drained.last_seqs["a"] + 1))
    assert [read_number(samples(frame)) for frame in decode(packets)] == list(range(1, len(packets) + 1))
    encode.tell(contract.CloseEncoder("a"))

    successor = Rig(stack)
    encode.control.send(contract.AttachFrames(FRAMES), successor.frames.describe())
    encode.open("a")
    successor.publish("a", 1)
    assert rig.take()[0].seq == 1


def test_shutdown_encodes_what_is_there_and_exits_0(rig: Rig) -> None:
    encode = rig.start()
    encode.open("a")
    for seq in range(1, 5):
        rig.publish("a", seq)
    encode.tell(contract.Shutdown())
    assert encode.wait() == 0
    assert [header.seq for header, _ in rig.take_rest()] == [1, 2, 3, 4]
    assert wait_for_delivery(rig.server) is None


def test_heartbeats_carry_the_progress(rig: Rig) -> None:
    encode = rig.start()
    encode.open("a")
    idle = encode.hear(contract.Heartbeat)
    for seq in range(1, 6):
        rig.publish("a", seq)
        rig.take()
    while (beat := encode.hear(contract.Heartbeat)).progress < 5 or beat.busy:
        pass
    assert not idle.busy and idle.progress == 0
    assert beat.progress == 5


def test_torch_is_never_loaded(rig: Rig) -> None:
    encode = rig.start()
    encode.open("a")
    rig.publish("a", 1)
    rig.take()
    loaded = Path(f"/proc/{encode.process.pid}/maps").read_text()
    assert "libx264" in loaded
    assert "torch" not in loaded
    code = "import sys, ithaka.workers.encode, ithaka.workers.encoding.process; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
