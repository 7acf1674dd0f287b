"""One chunk: call the family, and hand its frames to the channel only when the step was clean."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from ithaka.comm_ext.channel.base import ChannelMessage, Producer, TensorLayout
from ithaka.workers import wire
from ithaka.workers.contract import FrameHeader, PlannedStep
from ithaka.workers.families.base import Controls, FamilyError, FamilySpec, ModelFamily, StepInput
from ithaka.workers.fault import FaultPoints
from ithaka.workers.group import Group
from ithaka.workers.i420 import is_i420, rgb_to_i420
from ithaka.workers.pulse import Pulse
from ithaka.workers.session_memory import SessionMemory


class BadResultError(FamilyError):
    """A family returned something that is not a chunk of its own size."""

    code = "bad_result"


class Runner:
    """Runs planned steps of ``family`` on this rank."""

    def __init__(self, family: ModelFamily, group: Group, memory: SessionMemory, pulse: Pulse, faults: FaultPoints) -> None:
        self._family = family
        self._group = group
        self._memory = memory
        self._pulse = pulse
        self._faults = faults

    def run(self, step: PlannedStep) -> torch.Tensor | None:
        """On the leader uint8 I420 ``[n, height * 3 // 2, width]`` on the CPU, 1 ≤ n ≤ chunk_frames, or None when the
        session is finished; on other ranks None. Raises what the family raises, BadResultError, and
        UlyssesError when the group broke meanwhile.
        """
        controls = Controls(frozenset(step.held), frozenset(step.tapped), step.pointer_dx, step.pointer_dy, step.prompt)
        with self._pulse.busy():
            self._faults.reach("rank.before_step")
            frames = self._family.step(
                self._memory.get(step.session_id), StepInput(step.session_id, step.chunk, controls), self._in_step
            )
            self._faults.reach("rank.after_step")
            self._group.check()
            return None if frames is None else _checked_i420(frames, self._family.spec)

    def _in_step(self) -> None:
        self._pulse.progress()
        self._faults.reach("rank.in_step")


class FramePublisher:
    """Numbers a chunk's frames and moves them into slots of the leader's channel."""

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

    def publish(self, frames: torch.Tensor, step: PlannedStep, *, first_seq: int, control_id: int) -> None:
        """``frames`` as ``Runner.run`` returned them; the plan saw to it that there are slots for all. Raises ChannelError."""
        generated_ns = self._clock_ns()
        layout = TensorLayout(tuple(frames.shape[1:]), "uint8")
        for seq, frame in enumerate(frames.numpy(), start=first_seq):
            slot = self._producer.claim()
            assert slot is not None
            self._faults.reach("rank.claimed")
            slot.data[: frame.size] = frame.reshape(-1).data
            header = FrameHeader(step.session_id, seq, step.chunk, control_id, seq - 1, generated_ns)
            self._producer.publish(slot, ChannelMessage(wire.encode(header), (layout,)))
            self._faults.reach("rank.published")

    def close(self) -> None:
        """Idempotent; what was published can still be taken."""
        self._producer.close()


def _checked_i420(frames: torch.Tensor, spec: FamilySpec) -> torch.Tensor:
    expected = (spec.height * 3 // 2, spec.width) if is_i420(frames) else (spec.height, spec.width, 3)
    if frames.dtype != torch.uint8 or tuple(frames.shape[1:]) != expected or not 1 <= frames.shape[0] <= spec.chunk_frames:
        raise BadResultError(
            f"{spec.family} returned {frames.dtype} {list(frames.shape)}; expected uint8 with 1 to {spec.chunk_frames} frames "
            f"of {spec.width}x{spec.height}"
        )
    return (frames if is_i420(frames) else rgb_to_i420(frames)).contiguous().cpu()
