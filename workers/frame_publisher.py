"""Decoded frames on their way to encode: checked, converted, numbered, and moved into slots."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from ithaka.comm_ext.channel.base import ChannelClosedError, ChannelMessage, Producer, TensorLayout
from ithaka.workers import wire
from ithaka.workers.contract import FrameHeader
from ithaka.workers.families.base import FamilyError, FamilySpec
from ithaka.workers.fault import FaultPoints
from ithaka.workers.host_copy import to_host
from ithaka.workers.i420 import is_i420, rgb_to_i420
from ithaka.workers.stages.contract import LatentsHeader


class BadResultError(FamilyError):
    """A family returned something that is not a chunk of its own size."""

    code = "bad_result"


class FramePublisher:
    """Numbers a chunk's frames and moves them into slots of the frames' channel."""

    def __init__(self, producer: Producer, faults: FaultPoints, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._producer = producer
        self._faults = faults
        self._clock_ns = clock_ns

    @property
    def num_free(self) -> int:
        return self._producer.num_free

    def free_fd(self) -> int:
        """An eventfd, readable after a slot came back."""
        return self._producer.free_fd()

    def publish(self, frames: torch.Tensor, header: LatentsHeader) -> None:
        """``frames`` as ``checked_i420`` returns them, of the chunk that ``header`` describes; there are slots for all.

        Where encode has left the channel nobody wants them, and they are dropped. Raises ChannelError.
        """
        generated_ns = self._clock_ns()
        layout = TensorLayout(tuple(frames.shape[1:]), "uint8")
        try:
            for seq, frame in enumerate(frames.numpy(), start=header.first_seq):
                slot = self._producer.claim()
                assert slot is not None
                self._faults.reach("rank.claimed")
                slot.data[: frame.size] = frame.reshape(-1).data
                about = FrameHeader(header.session_id, seq, header.chunk, header.control_id, seq - 1, generated_ns)
                self._producer.publish(slot, ChannelMessage(wire.encode(about), (layout,)))
                self._faults.reach("rank.published")
        except ChannelClosedError:
            # The sessions are told by those who saw encode die; a new channel comes with the next one.
            return

    def close(self) -> None:
        """Idempotent; what was published can still be taken."""
        self._producer.close()


def checked_i420(frames: torch.Tensor, spec: FamilySpec) -> torch.Tensor:
    """What a family returned → uint8 I420 ``[n, height * 3 // 2, width]`` on the CPU, 1 ≤ n ≤ chunk_frames.

    Waits for the device. Raises BadResultError.
    """
    expected = (spec.height * 3 // 2, spec.width) if is_i420(frames) else (spec.height, spec.width, 3)
    if frames.dtype != torch.uint8 or tuple(frames.shape[1:]) != expected or not 1 <= frames.shape[0] <= spec.chunk_frames:
        raise BadResultError(
            f"{spec.family} returned {frames.dtype} {list(frames.shape)}; expected uint8 with 1 to {spec.chunk_frames} frames "
            f"of {spec.width}x{spec.height}"
        )
    return to_host((frames if is_i420(frames) else rgb_to_i420(frames)).contiguous())
