"""From latents to pictures: the half of a step that no other rank takes part in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from ithaka.workers.families.base import FamilySession, FamilySpec
from ithaka.workers.families.stages import Chunk
from ithaka.workers.families.wan.autoencoder import TinyAutoencoder, to_uint8
from ithaka.workers.families.wan.spec import LATENT_SIDE


@dataclass(slots=True)
class NoMemory:
    """A picture is decoded by itself."""


class PictureDecoder:
    """See ``families.stages.Decoder``. The latents of a chunk are its frame's tokens [1, LATENT_SIDE², C]."""

    def __init__(self, spec: FamilySpec, autoencoder: TinyAutoencoder, device: torch.device, dtype: torch.dtype) -> None:
        self.spec = spec
        self._autoencoder = autoencoder.to(device=device, dtype=dtype).to(memory_format=torch.channels_last)
        self._device = device
        self._dtype = dtype

    def open_session(self, session_id: str, *, seed: int, prompt: str, options: dict[str, Any]) -> NoMemory:
        """See Decoder."""
        return NoMemory()

    @torch.inference_mode()
    def decode(self, session: FamilySession, chunk: Chunk, progress: Callable[[], None]) -> torch.Tensor:
        """uint8 RGB [1, PICTURE_PIXELS, PICTURE_PIXELS, 3]."""
        progress()
        (tokens,) = chunk.tensors
        latents = tokens.to(self._device).reshape(-1, LATENT_SIDE, LATENT_SIDE, tokens.shape[-1]).permute(0, 3, 1, 2)
        return to_uint8(self._autoencoder.decode(latents.to(self._dtype)))

    def close_session(self, session: FamilySession) -> None:
        """Nothing is held."""
