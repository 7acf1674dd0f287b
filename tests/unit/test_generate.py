"""Clips: scripts, grants at scripted borders, and what a failing engine says."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ithaka.server.control_script import ControlScript, ScriptEntry, ScriptError, read_script
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
        on_ready=lambda _description: None,
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


async def test_what_is_wrong_with_the_model_is_told_before_it_is_asked() -> None:
    engine = ScriptedEngine()

    def refuse(description: ModelDescription) -> None:
        raise ScriptError(f"not with {description.model}")

    generation = Generation(engine, REQUEST, num_frames=9, script={}, on_ready=refuse, on_packet=lambda *_: None)
    with pytest.raises(ScriptError, match="not with m"):
        await generation.run()
    assert engine.seq == 0


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
    assert list(script.by_frame()) == [0, 9]
    assert [entry.prompt for entry in script.by_frame()[9]] == [None, "ice"]


def test_an_empty_script_is_one(tmp_path: Path) -> None:
    path = tmp_path / "walk.yaml"
    path.write_text("# nothing\n")
    assert read_script(path).by_frame() == {}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("- {at: -1}", "0.at"),
        ("- {pres: [KeyW], at: 1}", "0.pres: no such field; did you mean press? Known here: at, "),
        ("- {at: 1, at: 2}", ":1:11: 0.at stands here and in line 1, column 4; keep one of them"),
        ("{at: 1}", "an entry looks like"),
        ("- [", "not YAML"),
        ("- {at: 1, press: ['../x']}", "0.press.0"),
        ("- {at: true}", "0.at: true and false are no values"),
        ("- {at: 1, pointer_dx: true}", "0.pointer_dx: true and false are no values"),
        ("false", "script: Input should be a valid tuple"),
    ],
)
def test_a_bad_script_names_file_and_entry(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "walk.yaml"
    path.write_text(text)
    with pytest.raises(ScriptError) as caught:
        read_script(path)
    assert str(path) in str(caught.value) and said in str(caught.value)


def description(*, chunk_frames: int = 4, takes: bool = False) -> ModelDescription:
    return ModelDescription("m", "f", 64, 64, 12, chunk_frames, ("KeyA", "KeyW"), takes, takes, "none")


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        (
            ScriptEntry(at=0, press=("KeyA", "Keyw")),
            "0.press.1: model 'm' has no key 'Keyw'; its keys are: KeyA, KeyW; did you mean",
        ),
        (ScriptEntry(at=0, release=("Banana",)), "0.release.0: model 'm' has no key 'Banana'; its keys are: KeyA, KeyW"),
        (ScriptEntry(at=0, prompt="ice"), "0.prompt: model 'm' takes no prompt"),
        (ScriptEntry(at=0, pointer_dx=1), "0.pointer_dx: model 'm' takes no pointer"),
        (ScriptEntry(at=0, pointer_dy=1), "0.pointer_dy: model 'm' takes no pointer"),
        (
            ScriptEntry(at=9),
            "0.at: 9 comes after the start of the last chunk, frame 8, where input is taken last; the last frame is 9",
        ),
    ],
)
def test_input_of_which_a_clip_would_show_nothing_is_refused(entry: ScriptEntry, said: str) -> None:
    with pytest.raises(ScriptError) as caught:
        ControlScript("walk.yaml", (entry,)).require_model(description(), 10)
    assert str(caught.value).startswith(f"walk.yaml: {said}")


def test_everything_that_is_wrong_is_told_at_once() -> None:
    script = ControlScript("walk.yaml", (ScriptEntry(at=0, press=("a",)), ScriptEntry(at=1, press=("b", "KeyW", "c"))))
    with pytest.raises(ScriptError) as caught:
        script.require_model(description(), 10)
    assert [line.split(": ")[1] for line in str(caught.value).splitlines()] == ["0.press.0", "1.press.0", "1.press.2"]


def test_what_a_model_takes_passes() -> None:
    entries = (ScriptEntry(at=8, press=("KeyA",), release=("KeyW",), pointer_dx=1, prompt="ice"),)
    ControlScript("walk.yaml", entries).require_model(description(takes=True), 10)


@given(st.integers(1, 40), st.integers(1, 5), st.integers(0, 45))
@settings(deadline=None)
async def test_an_entry_is_refused_exactly_where_it_would_do_nothing(num_frames: int, chunk_frames: int, at: int) -> None:
    entry = ScriptEntry(at=at, press=("KeyW",))
    script = ControlScript("walk.yaml", (entry,))
    engine = ScriptedEngine(chunk_frames=chunk_frames)
    await run(engine, num_frames, script.by_frame())
    try:
        script.require_length(num_frames)
        script.require_model(description(chunk_frames=chunk_frames), num_frames)
    except ScriptError:
        assert engine.controls == []
    else:
        assert len(engine.controls) == 1
