"""What a model's stages say to each other beside ``workers.contract``: frozen dataclasses and nothing else."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

Stage = Literal["whole", "overlapped", "denoise", "decode", "verify"]
"""What a process of a group does. "whole": all of it. "overlapped": all of it, and where the device allows, decoding beside
the next step. The others are parts: "denoise" makes latents, "decode" frames of them, "verify" decodes a second time."""

STAGES_APART: frozenset[Stage] = frozenset({"decode", "verify"})
"""Those that take latents in a process of their own, and are no rank."""


@dataclass(frozen=True, slots=True)
class Placement:
    """A process's place in its group."""

    stage: Stage
    device_index: int
    """Which device, or on the CPU which process."""
    num_devices: int
    """Those the machine must have for the group."""
    num_processes: int
    """Those of the group, which share the machine's cores."""
    takers: tuple[Stage, ...] = ()
    """The stages that take the leader's latents; the leader and they themselves know them."""
    latents_devices: tuple[int, ...] = ()
    """As ``device_index``: the leader's, then each taker's."""


# -- from the leader to the stages that take its latents ---------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AttachLatents:
    """The channel that the leader's latents come by. Descriptors: those of ``channel.describe``."""

    consumer: int
    """Which of the channel's consumers this stage is."""


@dataclass(frozen=True, slots=True)
class OpenOnStage:
    """A session begins. ``stream`` is its number in the channel, never used again while the group lives."""

    stream: int
    session_id: str
    seed: int
    prompt: str
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CloseOnStage:
    """The session has ``num_chunks`` in all; its decoder goes after the last, or at once with all that waits (``discard``)."""

    stream: int
    num_chunks: int
    discard: bool


@dataclass(frozen=True, slots=True)
class StopStage:
    """The leader shuts down: decode what is in the channel, then exit 0."""


StageOrder = AttachLatents | OpenOnStage | CloseOnStage | StopStage


# -- to the server -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FramesDigested:
    """SHA-256 of the I420 bytes of frames from ``first_seq`` on, as this stage decoded them."""

    session_id: str
    first_seq: int
    digests: tuple[bytes, ...]


# -- the header that travels in the channel ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LatentsHeader:
    """Beside a chunk's latents: the chunk, and the frames that it will be."""

    session_id: str
    chunk: int
    first_seq: int
    num_frames: int
    control_id: int


StageMessage = StageOrder | LatentsHeader
"""All of these that cross a border by themselves."""
