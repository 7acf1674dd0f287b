"""Numbered frames of any size and rate: the family that protocol tests and benchmarks stand on. It makes I420 itself."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ithaka.workers.families.base import FamilyInputError, FamilyLoadError, FamilySession, FamilySpec, StepInput
from ithaka.workers.families.synthetic import barcode
from ithaka.workers.families.synthetic.agreement import Agreement
from ithaka.workers.families.synthetic.barcode import KEYS, Barcode
from ithaka.workers.families.synthetic.options import ModelOptions, SessionOptions
from ithaka.workers.families.synthetic.texture import DriftingTexture

if TYPE_CHECKING:
    from ithaka.comm_ext.ulysses.communicator import UlyssesCommunicator

_SLICE_S = 0.05
"""Of pretended work, between two calls of progress."""
_MAX_FRAMES = (1 << 32) - 1
"""What the barcode can count."""


@dataclass(slots=True)
class SyntheticSession:
    """One session's memory."""

    texture: DriftingTexture
    frames: int
    """How many the session has in all."""
    prompt_check: int
    generated: int = 0
    pan_x: float = 0.0
    pan_y: float = 0.0


class SyntheticFamily:
    """See ``families.base.ModelFamily``. With several ranks, each step proves over the communicator that they agree."""

    def __init__(self, spec: FamilySpec, options: ModelOptions, rank: int, agreement: Agreement | None) -> None:
        self.spec = spec
        self._options = options
        self._rank = rank
        self._agreement = agreement

    def open_session(self, session_id: str, *, seed: int, prompt: str, options: dict[str, Any]) -> SyntheticSession:
        """``options``: see ``SessionOptions``."""
        if seed < 0:
            raise FamilyInputError(f"seed must not be negative, got {seed}")
        frames = SessionOptions.parse(options).frames or self._options.frames or _MAX_FRAMES
        return SyntheticSession(
            DriftingTexture(self.spec.width, self.spec.height, seed), frames, barcode.check(prompt.encode())
        )

    def step(self, session: FamilySession, step: StepInput, progress: Callable[[], None]) -> torch.Tensor | None:
        """uint8 I420 ``[n, height * 3 // 2, width]`` on the CPU, n = chunk_frames or what the session still has."""
        assert isinstance(session, SyntheticSession)
        self._inject(step.chunk)
        self._work(progress)
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
        return self._draw(session, codes)

    def close_session(self, session: FamilySession) -> None:
        """Nothing is held outside the session object."""

    def _draw(self, session: SyntheticSession, codes: list[Barcode]) -> torch.Tensor:
        width, height = self.spec.width, self.spec.height
        frames = np.empty((len(codes), height * 3 // 2 * width), np.uint8)
        for frame, code in zip(frames, codes, strict=True):
            session.texture.draw(frame, code.number + int(session.pan_x), code.number // 2 + int(session.pan_y))
            barcode.draw(code, frame[: width * height].reshape(height, width))
        return torch.from_numpy(frames).view(len(codes), height * 3 // 2, width)

    def _work(self, progress: Callable[[], None]) -> None:
        remaining_s = self._options.step_ms / 1000
        while remaining_s > 0:
            progress()
            time.sleep(min(_SLICE_S, remaining_s))
            remaining_s -= _SLICE_S

    def _inject(self, chunk: int) -> None:
        if chunk == self._options.refuse_at_chunk:
            raise FamilyInputError(f"refused at chunk {chunk}, as the option refuse_at_chunk asks")
        if chunk == self._options.fail_at_chunk:
            raise RuntimeError(f"failed at chunk {chunk}, as the option fail_at_chunk asks")
        while chunk == self._options.hang_at_chunk:
            time.sleep(3600)


def load(
    *,
    model: str,
    options: dict[str, Any],
    device: torch.device,
    rank: int,
    num_ranks: int,
    communicator: UlyssesCommunicator | None,
) -> SyntheticFamily:
    """See ``families.base.FamilyLoader``. ``device`` plays no part: frames are drawn on the CPU."""
    parsed = ModelOptions.parse(options)
    if parsed.fail_load:
        raise FamilyLoadError("loading failed, as the option fail_load asks", field="options.fail_load")
    spec = FamilySpec(
        model=model,
        family="synthetic",
        width=parsed.width,
        height=parsed.height,
        fps=parsed.fps,
        chunk_frames=parsed.chunk_frames,
        session_memory_bytes=0,
        controls=KEYS,
        takes_prompt=True,
        takes_pointer=True,
        weights="none",
    )
    agreement = None if communicator is None else Agreement(communicator, num_ranks, device)
    if agreement is not None:
        agreement.check("", [])
    return SyntheticFamily(spec, parsed, rank, agreement)
