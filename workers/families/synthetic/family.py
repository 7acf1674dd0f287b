"""Numbered frames of any size and rate: the family that protocol tests and benchmarks stand on. It makes I420 itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from ithaka.workers.families.base import FamilyLoadError, FamilySession, FamilySpec, StepInput
from ithaka.workers.families.synthetic.agreement import Agreement
from ithaka.workers.families.synthetic.barcode import KEYS
from ithaka.workers.families.synthetic.denoiser import SyntheticDenoiser, SyntheticSession
from ithaka.workers.families.synthetic.drawing import Drawing, DrawingDecoder
from ithaka.workers.families.synthetic.options import ModelOptions

if TYPE_CHECKING:
    from ithaka.comm_ext.ulysses.communicator import UlyssesCommunicator


@dataclass(slots=True)
class SyntheticStream:
    """One session's memory, of both halves."""

    frames: SyntheticSession
    drawing: Drawing


class SyntheticFamily:
    """See ``families.base.ModelFamily``."""

    def __init__(self, denoiser: SyntheticDenoiser, decoder: DrawingDecoder) -> None:
        self.spec = denoiser.spec
        self._denoiser = denoiser
        self._decoder = decoder

    def open_session(self, session_id: str, *, seed: int, prompt: str, options: dict[str, Any]) -> SyntheticStream:
        """``options``: see ``SessionOptions``."""
        return SyntheticStream(
            self._denoiser.open_session(session_id, seed=seed, prompt=prompt, options=options),
            self._decoder.open_session(session_id, seed=seed, prompt=prompt, options=options),
        )

    def step(self, session: FamilySession, step: StepInput, progress: Callable[[], None]) -> torch.Tensor | None:
        """uint8 I420 ``[n, height * 3 // 2, width]`` on the CPU, n = chunk_frames or what the session still has."""
        assert isinstance(session, SyntheticStream)
        chunk = self._denoiser.denoise(session.frames, step, progress)
        return None if chunk is None else self._decoder.decode(session.drawing, chunk, progress)

    def close_session(self, session: FamilySession) -> None:
        """Nothing is held outside the session object."""


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
    return SyntheticFamily(
        load_denoiser(model=model, options=options, device=device, rank=rank, num_ranks=num_ranks, communicator=communicator),
        load_decoder(model=model, options=options, device=device),
    )


def load_denoiser(
    *,
    model: str,
    options: dict[str, Any],
    device: torch.device,
    rank: int,
    num_ranks: int,
    communicator: UlyssesCommunicator | None,
) -> SyntheticDenoiser:
    """See ``families.stages.DenoiserLoader``."""
    parsed = ModelOptions.parse(options)
    spec = _spec(model, parsed)
    agreement = None if communicator is None else Agreement(communicator, num_ranks, device)
    if agreement is not None:
        agreement.check("", [])
    return SyntheticDenoiser(spec, parsed, rank, agreement)


def load_decoder(*, model: str, options: dict[str, Any], device: torch.device) -> DrawingDecoder:
    """See ``families.stages.DecoderLoader``."""
    parsed = ModelOptions.parse(options)
    return DrawingDecoder(_spec(model, parsed), parsed)


def _spec(model: str, options: ModelOptions) -> FamilySpec:
    """Raises FamilyLoadError where the options ask for it."""
    if options.fail_load:
        raise FamilyLoadError("loading failed, as the option fail_load asks", field="options.fail_load")
    return FamilySpec(
        model=model,
        family="synthetic",
        width=options.width,
        height=options.height,
        fps=options.fps,
        chunk_frames=options.chunk_frames,
        session_memory_bytes=0,
        controls=KEYS,
        takes_prompt=True,
        takes_pointer=True,
        weights="none",
    )
