"""One chunk through the decoder, wherever that runs."""

from __future__ import annotations

from ithaka.workers.families.base import FamilySession
from ithaka.workers.families.stages import Chunk, Decoder
from ithaka.workers.fault import FaultPoints
from ithaka.workers.frame_publisher import BadResultError, checked_i420
from ithaka.workers.pulse import Pulse
from ithaka.workers.stages.contract import LatentsHeader


def decoded(
    decoder: Decoder, session: FamilySession, latents: Chunk, header: LatentsHeader, pulse: Pulse, faults: FaultPoints
) -> Chunk:
    """One tensor of frames as ``checked_i420`` returns them. Raises BadResultError, and what the decoder raises."""

    def in_decode() -> None:
        pulse.progress()
        faults.reach("stage.in_decode")

    with pulse.busy():
        faults.reach("stage.before_decode")
        frames = checked_i420(decoder.decode(session, latents, in_decode), decoder.spec)
        faults.reach("stage.after_decode")
    if frames.shape[0] != header.num_frames:
        raise BadResultError(f"chunk {header.chunk} decodes to {frames.shape[0]} frames, its step said {header.num_frames}")
    return Chunk((frames,), header.num_frames)
