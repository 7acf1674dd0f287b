"""One chunk: call the family, and let its result out only when the step was clean."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ithaka.workers.contract import PlannedStep
from ithaka.workers.families.base import Controls, FamilySession, FamilySpec, StepInput
from ithaka.workers.families.stages import Chunk
from ithaka.workers.fault import FaultPoints
from ithaka.workers.frame_publisher import BadResultError, checked_i420
from ithaka.workers.group import Group
from ithaka.workers.pulse import Pulse
from ithaka.workers.session_memory import SessionMemory

Compute = Callable[[FamilySession, StepInput, Callable[[], None]], torch.Tensor | Chunk | None]
"""``ModelFamily.step`` or ``Denoiser.denoise``."""


class Runner:
    """Runs planned steps on this rank: ``compute``, of the family that ``spec`` describes."""

    def __init__(
        self, compute: Compute, spec: FamilySpec, group: Group, memory: SessionMemory, pulse: Pulse, faults: FaultPoints
    ) -> None:
        self._compute = compute
        self._spec = spec
        self._group = group
        self._memory = memory
        self._pulse = pulse
        self._faults = faults

    def run(self, step: PlannedStep) -> Chunk | None:
        """On the leader latents, or one tensor of frames as ``checked_i420`` returns them; None when the session is finished.

        On other ranks None. Raises what the family raises, BadResultError, and UlyssesError when the group broke meanwhile.
        """
        controls = Controls(frozenset(step.held), frozenset(step.tapped), step.pointer_dx, step.pointer_dy, step.prompt)
        with self._pulse.busy():
            self._faults.reach("rank.before_step")
            made = self._compute(
                self._memory.get(step.session_id), StepInput(step.session_id, step.chunk, controls), self._in_step
            )
            self._faults.reach("rank.after_step")
            chunk = self._as_chunk(made)
            # Last: what was made on a device is there only now.
            self._group.check()
            return chunk

    def _as_chunk(self, made: torch.Tensor | Chunk | None) -> Chunk | None:
        if isinstance(made, torch.Tensor):
            frames = checked_i420(made, self._spec)
            return Chunk((frames,), frames.shape[0])
        if made is not None and not 1 <= made.num_frames <= self._spec.chunk_frames:
            raise BadResultError(
                f"{self._spec.family} returned latents of {made.num_frames} frames; expected 1 to {self._spec.chunk_frames}"
            )
        return made

    def _in_step(self) -> None:
        self._pulse.progress()
        self._faults.reach("rank.in_step")
