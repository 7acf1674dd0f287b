"""The labyrinth as a family: a walk through a generated maze, frame by frame, obeying keys and prompt."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ithaka.workers.families.base import Controls, FamilyInputError, FamilySession, FamilySpec, StepInput
from ithaka.workers.families.stages import Chunk
from ithaka.workers.families.wan.autoencoder import LATENT_CHANNELS
from ithaka.workers.families.wan.decoder import NoMemory, PictureDecoder
from ithaka.workers.families.wan.options import ModelOptions
from ithaka.workers.families.wan.prompt import padded_ids, theme_of, word_ids
from ithaka.workers.families.wan.sampler import FrameSampler, Stream
from ithaka.workers.families.wan.shards import share_of
from ithaka.workers.families.wan.spec import FPS, LATENT_SIDE, PICTURE_PIXELS
from ithaka.workers.families.wan.walker import KEYS, walk_controls
from ithaka.workers.families.wan.weights_check import check_steps
from ithaka.workers.families.wan.weights_folder import SHIPPED, WorldModel, load_autoencoder, load_world_model
from ithaka.workers.layers.packed_linear import can_pack

if TYPE_CHECKING:
    from ithaka.comm_ext.ulysses.communicator import UlyssesCommunicator

MAX_PROMPT_CHARACTERS = 2000
MAX_SEED = (1 << 63) - 1
WARM_UP_CHUNKS = 2


@dataclass(slots=True)
class WalkSession:
    """One walk's memory on one rank."""

    stream: Stream
    pending_turn: float = 0.0


class WanDenoiser:
    """A loaded model on one rank, up to its latents; see ``stages.Denoiser``."""

    needs_every_chunk = False

    def __init__(self, spec: FamilySpec, model: WorldModel, sampler: FrameSampler, *, is_leader: bool) -> None:
        self.spec = spec
        self.latents_bytes = LATENT_SIDE * LATENT_SIDE * model.transformer.num_channels * torch.float32.itemsize
        self._model = model
        self._sampler = sampler
        self._is_leader = is_leader

    def open_session(self, session_id: str, *, seed: int, prompt: str, options: dict[str, Any]) -> WalkSession:
        """Begin at one of the shipped beginnings that fit the prompt; the seed picks which."""
        if options:
            raise FamilyInputError(f"the model takes no session options, but got: {', '.join(sorted(options))}")
        if not 0 <= seed <= MAX_SEED:
            raise FamilyInputError(f"seed must be between 0 and {MAX_SEED}, not {seed}")
        _check_prompt(prompt)
        starts = self._model.starts
        theme = theme_of(prompt)
        num_themes, per_theme = starts.latents.shape[:2]
        theme_idx = theme if theme is not None else seed // per_theme % num_themes
        stream = self._sampler.open((seed,), _ids(prompt))
        chosen = (theme_idx, seed % per_theme)
        self._sampler.remember(stream, starts.latents[chosen][None], starts.controls[chosen][None])
        return WalkSession(stream)

    @torch.inference_mode()
    def denoise(self, session: FamilySession, step: StepInput, progress: Callable[[], None]) -> Chunk | None:
        """One frame's tokens, as ``PictureDecoder`` takes them; see ``Denoiser.denoise``."""
        assert isinstance(session, WalkSession)
        if step.controls.prompt is not None:
            _check_prompt(step.controls.prompt)
            self._sampler.set_prompt(session.stream, _ids(step.controls.prompt))
        moves, session.pending_turn = walk_controls(step.controls, session.pending_turn)
        self._sampler.progress = progress
        tokens = self._sampler.gather(self._sampler.sample(session.stream, torch.tensor([moves])))
        return Chunk((tokens,), 1) if self._is_leader else None

    def close_session(self, session: FamilySession) -> None:
        """Nothing to do: the memory goes with the session object."""


class WanWorld:
    """A loaded model on one rank; see ``ModelFamily``. Rank 0 decodes."""

    def __init__(self, denoiser: WanDenoiser, decoder: PictureDecoder) -> None:
        self.spec = denoiser.spec
        self._denoiser = denoiser
        self._decoder = decoder

    def open_session(self, session_id: str, *, seed: int, prompt: str, options: dict[str, Any]) -> WalkSession:
        """See ``WanDenoiser.open_session``."""
        return self._denoiser.open_session(session_id, seed=seed, prompt=prompt, options=options)

    def step(self, session: FamilySession, step: StepInput, progress: Callable[[], None]) -> torch.Tensor | None:
        """One frame; see ``ModelFamily.step``."""
        chunk = self._denoiser.denoise(session, step, progress)
        return None if chunk is None else self._decoder.decode(NoMemory(), chunk, progress)

    def close_session(self, session: FamilySession) -> None:
        """See ``WanDenoiser.close_session``."""
        self._denoiser.close_session(session)


def load(
    *,
    model: str,
    options: dict[str, Any],
    device: torch.device,
    rank: int,
    num_ranks: int,
    communicator: UlyssesCommunicator | None,
) -> WanWorld:
    """Load a model; see ``FamilyLoader``.

    Options: ``weights`` a folder, else the shipped one; ``steps`` 1..4, else the shipped number; ``dtype`` of the matrix
    products, ``auto`` | ``float32`` | ``bfloat16``: with ``float32`` the pictures do not depend on the number of ranks.
    """
    denoiser = load_denoiser(
        model=model, options=options, device=device, rank=rank, num_ranks=num_ranks, communicator=communicator
    )
    return WanWorld(denoiser, load_decoder(model=model, options=options, device=device))


def load_denoiser(
    *,
    model: str,
    options: dict[str, Any],
    device: torch.device,
    rank: int,
    num_ranks: int,
    communicator: UlyssesCommunicator | None,
) -> WanDenoiser:
    """See ``stages.DenoiserLoader``; options as of ``load``."""
    folder, steps, dtype = _read_options(options, device)
    world = load_world_model(folder)
    check_steps(world.sampling, steps)
    _place(world, device, dtype)
    share = share_of(
        rank,
        num_ranks,
        num_tokens=LATENT_SIDE * LATENT_SIDE,
        num_heads=world.transformer.num_heads,
        exchange=communicator,
        fuses=device.type == "cuda",
    )
    sampler = FrameSampler(
        world.transformer,
        world.prompt_encoder,
        latent_height=LATENT_SIDE,
        latent_width=LATENT_SIDE,
        window=world.sampling.window,
        sink=world.sampling.sink,
        schedule=world.sampling.schedule(steps if steps is not None else world.sampling.steps),
        token_share=share.tokens,
        num_local_heads=share.num_heads,
        shards=share.shards,
    )
    denoiser = WanDenoiser(_spec(model, folder, sampler.session_bytes), world, sampler, is_leader=rank == 0)
    session = denoiser.open_session("warm-up", seed=0, prompt="", options={})
    for chunk in range(WARM_UP_CHUNKS):
        denoiser.denoise(session, StepInput("warm-up", chunk, Controls()), lambda: None)
    return denoiser


def load_decoder(*, model: str, options: dict[str, Any], device: torch.device) -> PictureDecoder:
    """See ``stages.DecoderLoader``; options as of ``load``."""
    folder, _, dtype = _read_options(options, device)
    decoder = PictureDecoder(_spec(model, folder, 0), load_autoencoder(folder), device, dtype)
    tokens = torch.zeros(1, LATENT_SIDE * LATENT_SIDE, LATENT_CHANNELS)
    for _ in range(WARM_UP_CHUNKS):
        decoder.decode(NoMemory(), Chunk((tokens,), 1), lambda: None)
    return decoder


def _spec(model: str, folder: Path, session_memory_bytes: int) -> FamilySpec:
    return FamilySpec(
        model=model,
        family="labyrinth",
        width=PICTURE_PIXELS,
        height=PICTURE_PIXELS,
        fps=FPS,
        chunk_frames=1,
        session_memory_bytes=session_memory_bytes,
        controls=KEYS,
        takes_prompt=True,
        takes_pointer=True,
        weights="trained in this repository" if folder == SHIPPED else f"from {folder}",
    )


def _read_options(options: dict[str, Any], device: torch.device) -> tuple[Path, int | None, torch.dtype]:
    parsed = ModelOptions.parse(options)
    dtypes = {"auto": _fast_dtype(device), "float32": torch.float32, "bfloat16": torch.bfloat16}
    return parsed.weights or SHIPPED, parsed.steps, dtypes[parsed.dtype]


def _fast_dtype(device: torch.device) -> torch.dtype:
    """bfloat16 where the device multiplies it in hardware; elsewhere a CPU is far faster in float32."""
    if device.type != "cpu":
        return torch.bfloat16
    capabilities = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    in_hardware = any(capabilities.get(name, False) for name in ("avx512_bf16", "amx_bf16"))
    return torch.bfloat16 if in_hardware else torch.float32


def _place(world: WorldModel, device: torch.device, dtype: torch.dtype) -> None:
    for block in world.transformer.layers:
        block.attn1.fuse_projections()
    world.transformer.use_products_in(dtype)
    world.transformer.to(device=device)
    world.prompt_encoder.to(device=device)
    if can_pack(device):
        for block in world.transformer.layers:
            block.pack_products()


def _check_prompt(prompt: str) -> None:
    if len(prompt) > MAX_PROMPT_CHARACTERS:
        raise FamilyInputError(f"the prompt has {len(prompt)} characters; at most {MAX_PROMPT_CHARACTERS} are allowed")


def _ids(prompt: str) -> torch.Tensor:
    return torch.tensor([padded_ids(word_ids(prompt))])
