"""Clips: scripts, grants at scripted borders, and what a failing engine says."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ithaka.server.control_script import ScriptEntry, ScriptError, read_script
from ithaka.server.engine_client import (
    EngineListener,
    EngineSessionEnded,
    EngineSessionStarted,
    ModelChanged,
    ModelState,
    ModelStatus,
    PacketArrived,
    SessionRequest,
)
from ithaka.server.generate import Generation, GenerationError
from ithaka.workers.contract import ApplyControl, Codec, ModelDescription, PacketHeader


class ScriptedEngine:
    """Generates whole chunks at once when they are granted, and notes what it was told in order."""

    def __init__(self, *, chunk_frames: int = 1, failing: str = "", num_available: int = 10_000) -> None:
        self.description = ModelDescription("m", "f", 64, 64, 12, chunk_frames, (), False, False, "none")
        self.failing = failing
        self.num_available = num_available
        self.controls: list[tuple[int, int]] = []
        self.seq = 0
        self.stopped = False

    async def start(self, listener: EngineListener) -> None:
        self.listener = listener
        state = ModelState.FAILED if self.failing == "start" else ModelState.READY
        listener(ModelChanged(ModelStatus("m", state, 1, 1, self.description, message="weights are missing")))

    def models(self) -> tuple[ModelStatus, ...]:
        return ()

    def start_session(self, request: SessionRequest) -> None:
        self.listener(EngineSessionStarted(request.session_id, "avc1.42E01E"))

    def apply_control(self, control: ApplyControl) -> None:
        self.controls.append((self.seq, control.control_id))

    def grant(self, session_id: str, through_seq: int) -> None:
        while self.seq + self.description.chunk_frames <= through_seq:
            for _ in range(self.description.chunk_frames):
                self.seq += 1
                header = PacketHeader(session_id, self.seq, 0, 0, self.seq - 1, self.seq == 1, 0, 0)
                self.listener(PacketArrived(header, b"x"))
            if self.seq >= self.num_available:
                self.listener(EngineSessionEnded(session_id, self.seq, "finished"))
                return
            if self.failing == "midway" and self.seq >= 3:
                self.listener(EngineSessionEnded(session_id, self.seq, "worker_lost", "rank 1 died", retryable=True))
                return

    def request_key_frame(self, session_id: str, codec: Codec = "h264") -> None: ...

    def open_vp8(self, session_id: str) -> None: ...

    def close_vp8(self, session_id: str) -> None: ...

    def estimate_bitrate(self, session_id: str, bits_per_s: int) -> None: ...

    def end_session(self, session_id: str, *, discard: bool = False) -> None:
        self.listener(EngineSessionEnded(session_id, self.seq, "ended"))

    async def stop(self, *, deadline_s: float) -> None:
        self.stopped = True

    def kill(self) -> None: ...


REQUEST = SessionRequest("clip", "m", 0, "", "lossy")


async def run(engine: ScriptedEngine, num_frames: int, script: dict[int, tuple[ScriptEntry, ...]]) -> tuple[int, list[int]]:
    packets: list[int] = []
    generation = Generation(
        engine,
        REQUEST,
        num_frames=num_frames,
        script=script,
        on_packet=lambda _description, packet: packets.append(packet.header.seq),
    )
    return (await generation.run()).num_frames, packets


@given(
    st.integers(1, 40),
    st.integers(1, 5),
    st.dictionaries(st.integers(0, 45), st.just((ScriptEntry(at=0, press=("KeyW",)),)), max_size=6),
)
@settings(deadline=None)
async def test_a_clip_has_its_length_and_inputs_act_at_chunk_borders(
    num_frames: int, chunk_frames: int, script: dict[int, tuple[ScriptEntry, ...]]
) -> None:
    engine = ScriptedEngine(chunk_frames=chunk_frames)
    made, packets = await run(engine, num_frames, script)
    assert made == num_frames
    assert packets == list(range(1, num_frames + 1))
    expected = [-(-at // chunk_frames) * chunk_frames for at in sorted(script)]
    reached = [border for border in expected if border < -(-num_frames // chunk_frames) * chunk_frames and border < num_frames]
    assert [at for at, _ in engine.controls] == reached
    assert [control_id for _, control_id in engine.controls] == list(range(1, len(reached) + 1))


async def test_a_model_that_ends_early_makes_a_shorter_clip() -> None:
    made, packets = await run(ScriptedEngine(num_available=5), 9, {})
    assert (made, packets) == (5, [1, 2, 3, 4, 5])


@pytest.mark.parametrize(("failing", "said"), [("start", "weights are missing"), ("midway", "rank 1 died")])
async def test_a_failing_engine_is_explained(failing: str, said: str) -> None:
    with pytest.raises(GenerationError, match=said):
        await run(ScriptedEngine(failing=failing), 9, {})


def test_a_script_is_grouped_by_frame(tmp_path: Path) -> None:
    path = tmp_path / "walk.yaml"
    path.write_text("- {at: 9, release: [KeyW]}\n- {at: 0, press: [KeyW]}\n- {at: 9, prompt: ice}\n")
    script = read_script(path)
    assert list(script) == [0, 9]
    assert [entry.prompt for entry in script[9]] == [None, "ice"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("- {at: -1}", "0.at"),
        ("- {pres: [KeyW], at: 1}", "0.pres: no such field; did you mean press? Known here: at, "),
        ("- {at: 1, at: 2}", ":1:11: 0.at stands here and in line 1, column 4; keep one of them"),
        ("{at: 1}", "an entry looks like"),
        ("- [", "not YAML"),
        ("- {at: 1, press: ['../x']}", "0.press.0"),
    ],
)
def test_a_bad_script_names_file_and_entry(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "walk.yaml"
    path.write_text(text)
    with pytest.raises(ScriptError) as caught:
        read_script(path)
    assert str(path) in str(caught.value) and said in str(caught.value)
