"""Recordings on disk: whole or cut off they play, bounds hold, and an id opens nothing else."""

from __future__ import annotations

import json
import shutil
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import av
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.h264 import FPS, HEIGHT, WIDTH, frames

from ithaka.configs.schema import RecordingSection
from ithaka.server.mp4_writer import Mp4Writer
from ithaka.server.recording.fragments import count_frames
from ithaka.server.recording.library import Library, Note
from ithaka.server.recording.recorder import MAX_WAITING_BYTES, Recorder
from ithaka.server.session.retention import EncodedFrame

NOTE = Note("0" * 24, "session", "model", WIDTH, HEIGHT, FPS, 1000.0)


def played(path: Path) -> list[int]:
    """The pts of every picture that a player shows."""
    with av.open(str(path)) as container:
        return [round(float(picture.time) * FPS) for picture in container.decode(video=0) if picture.time is not None]


def note_of(number: int, started_at_s: float) -> Note:
    return replace(NOTE, recording_id=f"{number:024x}", started_at_s=started_at_s)


class Rig:
    def __init__(self, folder: Path, **bounds: Any) -> None:
        self.library = Library(RecordingSection(folder=folder, **bounds), folder)
        self.ended = threading.Event()

    def recorder(self, *, max_bytes: int = 2**30) -> Recorder:
        return Recorder(NOTE, self.library, max_bytes=max_bytes, on_end=self.ended.set)

    def store(self, number: int, started_at_s: float, num_bytes: int = 10) -> str:
        note = note_of(number, started_at_s)
        self.library.write_note(note)
        self.library.video_path(note.recording_id).write_bytes(bytes(num_bytes))
        return note.recording_id

    def ids(self) -> list[str]:
        return [recording.note.recording_id for recording in self.library.all()]


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


def test_every_packet_is_in_the_file_and_the_note_says_so(rig: Rig) -> None:
    recorder = rig.recorder()
    for frame in frames(40):
        recorder.take(frame)
    recorder.finish()
    recorder.join()
    recording = rig.library.find(NOTE.recording_id)
    assert recording is not None and rig.ended.is_set()
    assert (recording.note.num_frames, recording.note.skipped_frames, recording.note.is_complete) == (40, 0, True)
    assert played(recording.path) == list(range(40))


def test_the_packets_are_the_very_ones(rig: Rig) -> None:
    made = list(frames(10))
    recorder = rig.recorder()
    for frame in made:
        recorder.take(frame)
    recorder.finish()
    recorder.join()
    with av.open(str(rig.library.video_path(NOTE.recording_id))) as container:
        to_annex_b = av.BitStreamFilterContext("h264_mp4toannexb", container.streams.video[0])
        packets = [bytes(out) for packet in container.demux(video=0) if packet.size for out in to_annex_b.filter(packet)]

    def slices(data: bytes) -> list[bytes]:
        units = data.replace(b"\x00\x00\x00\x01", b"\x00\x00\x01").split(b"\x00\x00\x01")[1:]
        return [unit for unit in units if unit[0] & 0x1F in (1, 5)]

    assert [slices(data) for data in packets] == [slices(frame.payload) for frame in made]


def test_it_plays_at_any_time_as_far_as_the_last_whole_group_of_pictures(tmp_path: Path) -> None:
    path = tmp_path / "running.mp4"
    with Mp4Writer(path, fps=FPS, is_fragmented=True) as writer:
        for frame in frames(29):
            writer.write(frame.payload, pts=frame.header.pts, key=frame.header.key)
        cut_off = tmp_path / "cut.mp4"
        shutil.copy(path, cut_off)
    assert played(cut_off) == list(range(24)), "three groups of eight; the fourth was not whole yet"
    assert played(path) == list(range(29))


def cut_off(folder: Path) -> tuple[Path, Path]:
    """A recording of 29 frames as it lies there before the last is whole, and at its end."""
    path, running = folder / "whole.mp4", folder / "running.mp4"
    with Mp4Writer(path, fps=FPS, is_fragmented=True) as writer:
        for frame in frames(29):
            writer.write(frame.payload, pts=frame.header.pts, key=frame.header.key)
        shutil.copy(path, running)
    return running, path


def test_frames_are_counted_in_the_file(tmp_path: Path) -> None:
    running, whole = cut_off(tmp_path)
    assert (count_frames(running), count_frames(whole)) == (len(played(running)), 29)
    assert count_frames(running) == 24


def test_what_was_left_unfinished_is_listed_with_what_is_in_it(rig: Rig) -> None:
    running, _ = cut_off(rig.library._folder)
    rig.library.write_note(NOTE)
    running.rename(rig.library.video_path(NOTE.recording_id))
    (recording,) = rig.library.all()
    assert (recording.note.num_frames, recording.note.is_complete) == (24, False)


def test_a_file_that_is_cut_anywhere_counts_whole_fragments_alone(tmp_path: Path) -> None:
    data = cut_off(tmp_path)[1].read_bytes()
    cut = tmp_path / "cut.mp4"
    counts = []
    for num_bytes in range(0, len(data), 97):
        cut.write_bytes(data[:num_bytes])
        counts.append(count_frames(cut))
    assert counts == sorted(counts) and set(counts) <= {0, 8, 16, 24, 29}


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from([b"moof", b"mdat", b"traf", b"trun"]), st.binary(max_size=24)), max_size=8))
def test_any_boxes_are_counted_or_passed_over(
    tmp_path_factory: pytest.TempPathFactory, boxes: list[tuple[bytes, bytes]]
) -> None:
    path = tmp_path_factory.mktemp("boxes") / "video.mp4"
    path.write_bytes(b"".join((8 + len(body)).to_bytes(4, "big") + kind + body for kind, body in boxes) + b"\x00\x00\x00\x01")
    assert count_frames(path) >= 0


def test_one_that_has_only_just_begun_counts_among_the_most(tmp_path: Path) -> None:
    rig = Rig(tmp_path, max_count=2)
    rig.store(1, 1.0)
    young = rig.store(2, 2.0)
    assert rig.library.sweep(1000.0, {f"{3:024x}"}) == [f"{1:024x}"]
    assert rig.ids() == [young]


def test_it_begins_at_a_key_frame_and_passes_over_dropped_frames(rig: Rig) -> None:
    made = list(frames(24))
    made[12] = EncodedFrame(replace(made[12].header, dropped=True), b"")
    recorder = rig.recorder()
    for frame in made[3:]:
        recorder.take(frame)
    recorder.finish()
    recorder.join()
    recording = rig.library.find(NOTE.recording_id)
    assert recording is not None
    assert recording.note.skipped_frames == 5, "those before its first key frame"
    shown = played(recording.path)
    assert [number - shown[0] for number in shown] == [number - 8 for number in range(8, 24) if number != 12]


def test_it_ends_at_its_bound_and_plays(rig: Rig) -> None:
    made = list(frames(32))
    bound = sum(len(frame.payload) for frame in made[:20])
    recorder = rig.recorder(max_bytes=bound)
    for frame in made:
        recorder.take(frame)
    recorder.join()
    assert played(rig.library.video_path(NOTE.recording_id)) == list(range(20))


def test_a_disk_that_is_too_slow_costs_frames_through_the_next_key_frame(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread is held up in its first note."""
    gate = threading.Event()
    write_note = rig.library.write_note

    def held_up(note: Note) -> None:
        assert gate.wait(20)
        write_note(note)

    monkeypatch.setattr(rig.library, "write_note", held_up)
    recorder = rig.recorder()
    made = list(frames(24))
    padded = [EncodedFrame(frame.header, frame.payload + bytes(MAX_WAITING_BYTES // 4)) for frame in made[:4]]
    for frame in (*padded, *made[4:]):
        recorder.take(frame)
    gate.set()
    recorder.finish()
    recorder.join()
    recording = rig.library.find(NOTE.recording_id)
    assert recording is not None
    assert recording.note.skipped_frames == 5, "the fourth did not fit, and the four after it need it"
    assert recording.note.num_frames == 19


def test_a_disk_that_refuses_ends_the_recording_alone(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    rig = Rig(tmp_path / "file")
    recorder = rig.recorder()
    for frame in frames(4):
        recorder.take(frame)
    recorder.join()
    assert rig.ended.is_set()


def test_a_full_disk_ends_the_recording_alone(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rig.library, "video_path", lambda recording_id: Path("/dev/full"))
    recorder = rig.recorder()
    for frame in frames(48):
        recorder.take(frame)
    recorder.finish()
    recorder.join()
    assert rig.ended.is_set()
    (note,) = rig.library._folder.glob("*.json")
    assert not json.loads(note.read_text())["is_complete"]


@pytest.mark.parametrize("bad", ["", "..", "../x", "0" * 23, "0" * 25, "G" * 24, "0" * 23 + "/", "0" * 24 + "\n"])
def test_an_id_opens_nothing_else(rig: Rig, bad: str) -> None:
    assert rig.library.find(bad) is None


@pytest.mark.parametrize("damage", ["", "{", "[]", json.dumps({"recording_id": 1})])
def test_a_damaged_note_hides_its_recording_and_no_other(rig: Rig, damage: str) -> None:
    kept = rig.store(1, 1.0)
    rig.store(2, 2.0)
    (rig.library.video_path(f"{2:024x}").with_suffix(".json")).write_text(damage)
    assert rig.ids() == [kept]


def test_what_is_too_old_goes(tmp_path: Path) -> None:
    rig = Rig(tmp_path, max_age_s=100)
    rig.store(1, 800.0)
    young = rig.store(2, 950.0)
    assert rig.library.sweep(1000.0, ()) == [f"{1:024x}"]
    assert rig.ids() == [young]
    assert not rig.library.video_path(f"{1:024x}").exists()


@settings(deadline=None)
@given(
    st.lists(st.integers(1, 4096), max_size=12),
    st.integers(1, 6),
    st.integers(1024, 16_384),
    st.sets(st.integers(0, 11), max_size=3),
)
def test_bounds_hold_after_a_sweep_and_the_newest_stay(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], max_count: int, max_total: int, running: set[int]
) -> None:
    rig = Rig(tmp_path_factory.mktemp("library"), max_count=max_count, max_total_bytes=max_total)
    ids = [rig.store(number, float(number), size) for number, size in enumerate(sizes)]
    in_use = {ids[number] for number in running if number < len(ids)}
    deleted = set(rig.library.sweep(1000.0, in_use))
    assert not deleted & in_use
    left = [number for number, known in enumerate(ids) if known not in deleted]
    idle = [number for number in left if ids[number] not in in_use]
    is_within = len(left) <= max_count and sum(sizes[number] for number in left) <= max_total
    assert is_within or not idle, "only what runs may pass a bound"
    gone = [number for number, known in enumerate(ids) if known in deleted]
    assert not gone or not idle or max(gone) < min(idle), "the oldest go first"
