"""What a run does: frozen values and nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

TransportName = Literal["websocket", "datachannel", "webrtc"]
Delivery = Literal["lossless", "live"]
CodecName = Literal["h264", "vp8"]
CODECS: tuple[CodecName, ...] = ("h264", "vp8")
TRANSPORTS: tuple[TransportName, ...] = ("websocket", "datachannel", "webrtc")


@dataclass(frozen=True, slots=True)
class Plan:
    """``controls_per_s`` 0 sends none. ``decodes``: decode every picture, or only receive it. ``codec`` of a track."""

    url: str
    api_key: str | None
    model: str
    num_sessions: int
    transport: TransportName
    delivery: Delivery
    duration_s: float
    controls_per_s: float
    decodes: bool
    start_interval_s: float = 0.1
    codec: CodecName = "h264"

    def problem(self) -> str | None:
        """What can't be done, in words; None when all can."""
        if self.num_sessions < 1 or self.duration_s <= 0 or self.controls_per_s < 0:
            return "sessions and seconds have to be positive, controls not negative"
        if self.transport == "webrtc" and self.delivery == "lossless":
            return "a track may lose frames; use --delivery live, or --transport datachannel"
        if self.codec == "vp8" and self.transport != "webrtc":
            return "VP8 comes as a track alone; use --transport webrtc"
        return None


@dataclass(frozen=True, slots=True)
class Arrival:
    """A frame that is there, and decoded where the plan says so.

    Times in nanoseconds of CLOCK_MONOTONIC; ``generated_ns`` is the server's, so it says something on the same host only.
    """

    seq: int
    control_id: int
    generated_ns: int
    arrived_ns: int
