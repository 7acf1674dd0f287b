"""What a family adds so that its model can be split into stages: denoising and decoding, each loaded where it runs.

A module that offers ``load_denoiser`` and ``load_decoder`` beside its ``load`` can be staged; ``step`` is then what the two
yield in a row, to the bit. Both see the same sessions: same ids, seeds, prompts and options.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from ithaka.workers.families.base import FamilySession, FamilySpec, StepInput

if TYPE_CHECKING:
    import torch

    from ithaka.comm_ext.ulysses.communicator import UlyssesCommunicator


@dataclass(frozen=True, slots=True)
class Chunk:
    """What a step made, on its way: latents, or the frames themselves. Any device; handed on, so nobody writes to it again."""

    tensors: tuple[torch.Tensor, ...]
    num_frames: int
    """Frames that it is, or decodes to: 1 to ``chunk_frames``."""


class Denoiser(Protocol):
    """A loaded model without its decoder, on one rank; see ``ModelFamily``, whose rules hold."""

    spec: FamilySpec
    latents_bytes: int
    """Of one chunk, at most."""
    needs_every_chunk: bool
    """Whether decoding a chunk depends on those before it. False where some may be left out."""

    def open_session(self, session_id: str, *, seed: int, prompt: str, options: dict[str, Any]) -> FamilySession: ...

    def denoise(self, session: FamilySession, step: StepInput, progress: Callable[[], None]) -> Chunk | None:
        """``ModelFamily.step`` up to the latents; None on ranks other than 0, and on rank 0 when the session has no more."""
        ...

    def close_session(self, session: FamilySession) -> None: ...


class Decoder(Protocol):
    """The other half. It sees a session's chunks in order; what one leaves for the next lives in its session."""

    spec: FamilySpec

    def open_session(self, session_id: str, *, seed: int, prompt: str, options: dict[str, Any]) -> FamilySession:
        """Refuses nothing: the denoiser has taken the session already."""
        ...

    def decode(self, session: FamilySession, chunk: Chunk, progress: Callable[[], None]) -> torch.Tensor:
        """Frames as ``ModelFamily.step`` returns them, ``chunk.num_frames`` of them.

        ``chunk`` lies on the decoder's device or on the CPU; calls ``progress()`` at least once.
        """
        ...

    def close_session(self, session: FamilySession) -> None: ...


class DenoiserLoader(Protocol):
    """``load_denoiser`` of a family's module; see ``FamilyLoader``."""

    def __call__(
        self,
        *,
        model: str,
        options: dict[str, Any],
        device: torch.device,
        rank: int,
        num_ranks: int,
        communicator: UlyssesCommunicator | None,
    ) -> Denoiser: ...


class DecoderLoader(Protocol):
    """``load_decoder`` of a family's module. Warms up; raises FamilyLoadError."""

    def __call__(self, *, model: str, options: dict[str, Any], device: torch.device) -> Decoder: ...


@dataclass(frozen=True, slots=True)
class StageLoaders:
    """Both of one family."""

    denoiser: DenoiserLoader
    decoder: DecoderLoader
