"""What the server and its children say to each other: frozen dataclasses and nothing else.

Commands are imperative and flow down, reports are past tense and flow up. ``wire`` turns them into bytes. File descriptors
ride beside a message (SCM_RIGHTS), in the order its docstring gives.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from ithaka.workers.stages.contract import FramesDigested, Placement

WORKER_ENTRY = "ithaka.workers.main"
ENCODE_ENTRY = "ithaka.workers.encode"

MODEL_LOAD_FAILED = "model_load_failed"
"""Of WorkerFailed: settings or weights are wrong, and stay so at the next start."""

Pixels = Literal["lossy", "exact"]
"""H.264 at constant rate factor 20 (4:2:0, close to the source) or at qp 0 (the I420 samples bit for bit)."""

Codec = Literal["h264", "vp8"]
"""VP8 is one more encode, made only while a receiver without H.264 is there."""

Delivery = Literal["lossless", "live"]
"""Every frame, whatever it takes; or the newest one, whatever is lost on the way."""


# -- to a rank ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ConfigureRank:
    """The first message a rank reads; argv names nothing but the control socket.

    Descriptors: those of the communicator's group (none for one rank), then the plan sockets: on the leader one for each
    follower in rank order and one for each taker, on a follower one to the leader. A stage apart has one, to the leader;
    its ``rank`` follows the ranks' own.
    """

    group: str
    rank: int
    num_ranks: int
    model: str
    family: str
    device: str
    placement: Placement
    num_threads: int
    max_sessions: int
    heartbeat_interval_s: float
    communicator_timeout_s: float
    options: dict[str, Any] = field(default_factory=dict)
    log_level: str = "info"
    log_format: Literal["console", "json"] = "console"


@dataclass(frozen=True, slots=True)
class AttachFrames:
    """A channel for I420 frames: leader or decode stage produces, encode consumes. Descriptors: of ``channel.describe``."""

    channel_id: int


@dataclass(frozen=True, slots=True)
class StartSession:
    session_id: str
    seed: int
    prompt: str
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ApplyControl:
    """One client input. Ids grow by client order; the leader coalesces what lies between two plans."""

    session_id: str
    control_id: int
    pressed: tuple[str, ...] = ()
    released: tuple[str, ...] = ()
    pointer_dx: float = 0.0
    pointer_dy: float = 0.0
    prompt: str | None = None


@dataclass(frozen=True, slots=True)
class GrantFrames:
    """The session may be generated through this seq (cumulative, never smaller than before).

    The server folds window, acknowledgements and pacer into this one number; a worker reads no clock.
    """

    session_id: str
    through_seq: int


@dataclass(frozen=True, slots=True)
class EndSession:
    """Plan no more chunks; what was generated still goes out, unless ``discard``. Answered by SessionEnded."""

    session_id: str
    discard: bool = False
    """Nobody wants the rest: what is not decoded yet never will be."""


@dataclass(frozen=True, slots=True)
class Shutdown:
    """Finish the step in hand, close communicator and channels in order, exit 0."""


# -- from a rank -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ModelDescription:
    """FamilySpec as it crosses the border. Sizes in pixels, ``fps`` in frames per second of media time."""

    model: str
    family: str
    width: int
    height: int
    fps: int
    chunk_frames: int
    controls: tuple[str, ...]
    takes_prompt: bool
    takes_pointer: bool
    weights: str


@dataclass(frozen=True, slots=True)
class WorkerReady:
    rank: int
    description: ModelDescription


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Sent every ``heartbeat_interval_s`` by a thread that needs no step to end.

    ``progress`` counts forwards; ``busy`` says a step is running. Busy without progress past the deadline is a hang.
    """

    progress: int
    busy: bool


@dataclass(frozen=True, slots=True)
class SessionStarted:
    session_id: str


@dataclass(frozen=True, slots=True)
class StepCompleted:
    """One chunk is in the channel, through ``last_seq``: as frames, or as latents that will be. Times in milliseconds."""

    session_id: str
    chunk: int
    last_seq: int
    control_id: int
    step_ms: float


@dataclass(frozen=True, slots=True)
class SessionEnded:
    """No frame follows ``last_seq``. ``code`` is "ended", "finished" (the family had no more) or an error's code."""

    session_id: str
    last_seq: int
    code: str = "ended"
    message: str = ""


@dataclass(frozen=True, slots=True)
class WorkerFailed:
    """The rank can't go on; the group falls with it. ``culprit_rank`` is the first to blame, or -1."""

    rank: int
    code: str
    message: str
    culprit_rank: int = -1


# -- from the leader to the other ranks --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """One chunk of one session, with the controls as they stood when it was planned (see families.base.Controls)."""

    session_id: str
    chunk: int
    held: tuple[str, ...] = ()
    tapped: tuple[str, ...] = ()
    pointer_dx: float = 0.0
    pointer_dy: float = 0.0
    prompt: str | None = None


@dataclass(frozen=True, slots=True)
class StepPlan:
    """The same for every rank, in the same order; a tuple, so that batching needs no new contract."""

    plan_id: int
    steps: tuple[PlannedStep, ...]


@dataclass(frozen=True, slots=True)
class OpenOnRank:
    session_id: str
    seed: int
    prompt: str
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CloseOnRank:
    session_id: str


@dataclass(frozen=True, slots=True)
class StopRank:
    """The leader shuts down; the follower closes its communicator with it and exits 0."""


# -- to encode ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ConfigureEncode:
    """The first message the encode process reads."""

    name: str
    crf: int
    preset: str
    key_frame_interval_s: float
    heartbeat_interval_s: float
    log_level: str = "info"
    log_format: Literal["console", "json"] = "console"
    live_preset: str = "superfast"
    """For streams at a constant bit rate."""


@dataclass(frozen=True, slots=True)
class AttachPackets:
    """The channel for encoded packets: encode produces, the server consumes. Descriptors as for AttachFrames."""

    channel_id: int


@dataclass(frozen=True, slots=True)
class DetachFrames:
    """The producer is gone or closed: encode what is in the channel, then answer FramesDrained."""

    channel_id: int


@dataclass(frozen=True, slots=True)
class OpenEncoder:
    session_id: str
    width: int
    height: int
    fps: int
    pixels: Pixels
    bits_per_s: int = 0
    """Constant bit rate; 0 for constant quality."""
    max_waiting_frames: int = 0
    """The newest win: of frames that wait for the encoder, older ones than these are dropped. 0: none is, all wait."""


@dataclass(frozen=True, slots=True)
class SetBitrate:
    """Of an encoder that was opened with a bit rate."""

    session_id: str
    bits_per_s: int


@dataclass(frozen=True, slots=True)
class OpenVp8:
    """Encode the session in VP8 too, from its next frame on, until CloseVp8. Its packets come beside the others."""

    session_id: str
    bits_per_s: int


@dataclass(frozen=True, slots=True)
class CloseVp8:
    session_id: str


@dataclass(frozen=True, slots=True)
class RequestKeyFrame:
    session_id: str
    codec: Codec = "h264"


@dataclass(frozen=True, slots=True)
class CloseEncoder:
    session_id: str


# -- from encode -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class EncodeReady:
    pass


@dataclass(frozen=True, slots=True)
class EncoderOpened:
    """``codec`` is the RFC 6381 string that a browser's VideoDecoder takes, e.g. "avc1.42E01E"."""

    session_id: str
    codec: str


@dataclass(frozen=True, slots=True)
class EncoderFailed:
    session_id: str
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class FramesDrained:
    """Every frame of the channel is in the packet channel; ``last_seqs`` holds the last one of each of its sessions."""

    channel_id: int
    last_seqs: dict[str, int]


# -- headers that travel in the channels -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FrameHeader:
    """Beside an I420 frame. ``pts`` counts frames of media time (time base 1/fps) from 0; ``seq`` counts from 1."""

    session_id: str
    seq: int
    chunk: int
    control_id: int
    pts: int
    generated_ns: int
    """CLOCK_MONOTONIC when the step that made the frame ended, nanoseconds."""


@dataclass(frozen=True, slots=True)
class PacketHeader:
    """Beside an encoded access unit (H.264 Annex B, or a VP8 frame). ``dropped``: the frame was not encoded, there is none."""

    session_id: str
    seq: int
    chunk: int
    control_id: int
    pts: int
    key: bool
    generated_ns: int
    encoded_ns: int
    dropped: bool = False
    codec: Codec = "h264"


Command = (
    ConfigureRank
    | AttachFrames
    | StartSession
    | ApplyControl
    | GrantFrames
    | EndSession
    | Shutdown
    | ConfigureEncode
    | AttachPackets
    | DetachFrames
    | OpenEncoder
    | SetBitrate
    | OpenVp8
    | CloseVp8
    | RequestKeyFrame
    | CloseEncoder
)
Report = (
    WorkerReady
    | Heartbeat
    | SessionStarted
    | StepCompleted
    | SessionEnded
    | WorkerFailed
    | EncodeReady
    | EncoderOpened
    | EncoderFailed
    | FramesDrained
    | FramesDigested
)
RankOrder = OpenOnRank | StepPlan | CloseOnRank | StopRank
Header = FrameHeader | PacketHeader
