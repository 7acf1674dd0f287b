"""The first half of a step: what frames say, by controls, prompt and number."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from ithaka.workers.families.base import FamilyInputError, FamilySession, FamilySpec, StepInput
from ithaka.workers.families.stages import Chunk
from ithaka.workers.families.synthetic import barcode
from ithaka.workers.families.synthetic.agreement import Agreement
from ithaka.workers.families.synthetic.barcode import Barcode
from ithaka.workers.families.synthetic.drawing import NUM_FIELDS, pretend_work, written
from ithaka.workers.families.synthetic.options import ModelOptions, SessionOptions

_MAX_FRAMES = (1 << 32) - 1
"""What the barcode can count."""


@dataclass(slots=True)
class SyntheticSession:
    """One session's memory."""

    frames: int
    """How many the session has in all."""
    prompt_check: int
    generated: int = 0
    pan_x: float = 0.0
    pan_y: float = 0.0


class SyntheticDenoiser:
    """See ``families.stages.Denoiser``. With several ranks, each step proves over the communicator that they agree."""

    needs_every_chunk = True

    def __init__(self, spec: FamilySpec, options: ModelOptions, rank: int, agreement: Agreement | None) -> None:
        self.spec = spec
        self.latents_bytes = spec.chunk_frames * NUM_FIELDS * torch.int64.itemsize
        self._options = options
        self._rank = rank
        self._agreement = agreement

    def open_session(self, session_id: str, *, seed: int, prompt: str, options: dict[str, Any]) -> SyntheticSession:
        """``options``: see ``SessionOptions``."""
        if seed < 0:
            raise FamilyInputError(f"seed must not be negative, got {seed}")
        frames = SessionOptions.parse(options).frames or self._options.frames or _MAX_FRAMES
        return SyntheticSession(frames, barcode.check(prompt.encode()))

    def denoise(self, session: FamilySession, step: StepInput, progress: Callable[[], None]) -> Chunk | None:
        """``drawing.written`` of chunk_frames frames, or of what the session still has."""
        assert isinstance(session, SyntheticSession)
        self._inject(step.chunk)
        pretend_work(self._options.step_ms, progress)
        if step.controls.prompt is not None:
            session.prompt_check = barcode.check(step.controls.prompt.encode())
        session.pan_x += step.controls.pointer_dx
        session.pan_y += step.controls.pointer_dy
        num_frames = min(self.spec.chunk_frames, session.frames - session.generated)
        first = session.generated + 1
        session.generated += num_frames
        codes = [
            Barcode(first + index, step.controls.held, step.controls.tapped, session.prompt_check)
            for index in range(num_frames)
        ]
        if self._agreement is not None:
            self._agreement.check(step.session_id, codes)
        progress()
        if self._rank != 0 or num_frames == 0:
            return None
        return Chunk((written(codes, int(session.pan_x), int(session.pan_y)),), num_frames)

    def close_session(self, session: FamilySession) -> None:
        """Nothing is held outside the session object."""

    def _inject(self, chunk: int) -> None:
        if chunk == self._options.refuse_at_chunk:
            raise FamilyInputError(f"refused at chunk {chunk}, as the option refuse_at_chunk asks")
        if chunk == self._options.fail_at_chunk:
            raise RuntimeError(f"failed at chunk {chunk}, as the option fail_at_chunk asks")
        while chunk == self._options.hang_at_chunk:
            time.sleep(3600)
