"""The second half of a step: what frames say becomes pictures."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ithaka.workers.families.base import FamilySession, FamilySpec
from ithaka.workers.families.stages import Chunk
from ithaka.workers.families.synthetic import barcode
from ithaka.workers.families.synthetic.barcode import Barcode
from ithaka.workers.families.synthetic.options import ModelOptions
from ithaka.workers.families.synthetic.texture import DriftingTexture

NUM_FIELDS = 6
_SLICE_S = 0.05
"""Of pretended work, between two calls of progress."""


@dataclass(slots=True)
class Drawing:
    """One session's memory: the texture drifts with each frame that was drawn."""

    texture: DriftingTexture
    num_drawn: int = 0


class DrawingDecoder:
    """See ``families.stages.Decoder``."""

    def __init__(self, spec: FamilySpec, options: ModelOptions) -> None:
        self.spec = spec
        self._options = options

    def open_session(self, session_id: str, *, seed: int, prompt: str, options: dict[str, Any]) -> Drawing:
        """The seed gives the colours."""
        return Drawing(DriftingTexture(self.spec.width, self.spec.height, seed))

    def decode(self, session: FamilySession, chunk: Chunk, progress: Callable[[], None]) -> torch.Tensor:
        """``written`` → uint8 I420 ``[n, height * 3 // 2, width]`` on the CPU."""
        assert isinstance(session, Drawing)
        pretend_work(self._options.decode_ms, progress)
        progress()
        width, height = self.spec.width, self.spec.height
        rows = chunk.tensors[0].tolist()
        frames = np.empty((len(rows), height * 3 // 2 * width), np.uint8)
        for frame, row in zip(frames, rows, strict=True):
            code, pan_x, pan_y = _read(row)
            session.num_drawn += 1
            session.texture.draw(frame, session.num_drawn + pan_x, session.num_drawn // 2 + pan_y)
            barcode.draw(code, frame[: width * height].reshape(height, width))
        return torch.from_numpy(frames).view(len(rows), height * 3 // 2, width)

    def close_session(self, session: FamilySession) -> None:
        """Nothing is held outside the session object."""


def written(codes: Sequence[Barcode], pan_x: int, pan_y: int) -> torch.Tensor:
    """Frames as latents: int64 ``[n, NUM_FIELDS]``."""
    return torch.tensor(
        [
            (code.number, barcode.mask_of(code.held), barcode.mask_of(code.tapped), code.prompt_check, pan_x, pan_y)
            for code in codes
        ],
        dtype=torch.int64,
    )


def pretend_work(work_ms: float, progress: Callable[[], None]) -> None:
    """Take so long, with signs of it."""
    remaining_s = work_ms / 1000
    while remaining_s > 0:
        progress()
        time.sleep(min(_SLICE_S, remaining_s))
        remaining_s -= _SLICE_S


def _read(row: Sequence[int]) -> tuple[Barcode, int, int]:
    number, held, tapped, prompt_check, pan_x, pan_y = row
    return Barcode(number, barcode.keys_of(held), barcode.keys_of(tapped), prompt_check), pan_x, pan_y
