"""The labyrinth as a family: a walk through a generated maze, frame by frame, obeying keys and prompt."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ithaka.workers.families.base import Controls, FamilyInputError, FamilyLoadError, FamilySpec, StepInput
from ithaka.workers.families.wan.autoencoder import to_uint8
from ithaka.workers.families.wan.prompt import padded_ids, theme_of, word_ids
from ithaka.workers.families.wan.sampler import FrameSampler, Stream
from ithaka.workers.families.wan.shards import share_of
from ithaka.workers.families.wan.spec import FPS, LATENT_SIDE, PICTURE_PIXELS
from ithaka.workers.families.wan.walker import KEYS, walk_controls
from ithaka.workers.families.wan.weights_folder import SHIPPED, WorldModel, load_world_model

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


class WanWorld:
    """A loaded model on one rank; see ``ModelFamily``."""

    def __init__(self, spec: FamilySpec, model: WorldModel, sampler: FrameSampler, *, decodes: bool) -> None:
        self.spec = spec
        self._model = model
        self._sampler = sampler
        self._decodes = decodes

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
    def step(self, session: WalkSession, step: StepInput, progress: Callable[[], None]) -> torch.Tensor | None:
        """One frame; see ``ModelFamily.step``."""
        if step.controls.prompt is not None:
            _check_prompt(step.controls.prompt)
            self._sampler.set_prompt(session.stream, _ids(step.controls.prompt))
        moves, session.pending_turn = walk_controls(step.controls, session.pending_turn)
        self._sampler.progress = progress
        tokens = self._sampler.gather(self._sampler.sample(session.stream, torch.tensor([moves])))
        if not self._decodes:
            return None
        latents = tokens.reshape(-1, LATENT_SIDE, LATENT_SIDE, tokens.shape[-1]).permute(0, 3, 1, 2)
        latents = latents.to(next(self._model.autoencoder.parameters()).dtype)
        return to_uint8(self._model.autoencoder.decode(latents))

    def close_session(self, session: WalkSession) -> None:
        """Nothing to do: the memory goes with the session object."""


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
    folder, steps, dtype = _read_options(options, device)
    world = load_world_model(folder)
    if steps is not None and steps not in world.sampling.levels:
        known = ", ".join(str(number) for number in sorted(world.sampling.levels))
        raise FamilyLoadError(
            f"the model samples in {known} steps, not {steps}. Change the option `steps`.", field="options.steps"
        )
    _place(world, device, dtype)
    share = share_of(
        rank,
        num_ranks,
        num_tokens=LATENT_SIDE * LATENT_SIDE,
        num_heads=world.transformer.num_heads,
        exchange=communicator,
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
    spec = FamilySpec(
        model=model,
        family="labyrinth",
        width=PICTURE_PIXELS,
        height=PICTURE_PIXELS,
        fps=FPS,
        chunk_frames=1,
        session_memory_bytes=sampler.session_bytes,
        controls=KEYS,
        takes_prompt=True,
        takes_pointer=True,
        weights="trained in this repository" if folder == SHIPPED else f"from {folder}",
    )
    family = WanWorld(spec, world, sampler, decodes=rank == 0)
    _warm_up(family)
    return family


def _read_options(options: dict[str, Any], device: torch.device) -> tuple[Path, int | None, torch.dtype]:
    unknown = set(options) - {"weights", "steps", "dtype"}
    if unknown:
        raise FamilyLoadError(
            f"unknown model options: {', '.join(sorted(unknown))}. The model takes weights, steps and dtype.",
            field=f"options.{min(unknown)}",
        )
    steps = options.get("steps")
    if steps is not None and (isinstance(steps, bool) or not isinstance(steps, int)):
        raise FamilyLoadError(f"the option `steps` must be a whole number, not {steps!r}", field="options.steps")
    name = options.get("dtype", "auto")
    dtypes = {"auto": _fast_dtype(device), "float32": torch.float32, "bfloat16": torch.bfloat16}
    if name not in dtypes:
        raise FamilyLoadError(f"the option `dtype` must be one of {', '.join(dtypes)}, not {name!r}", field="options.dtype")
    weights = options.get("weights", SHIPPED)
    if not isinstance(weights, (str, Path)):
        raise FamilyLoadError(f"the option `weights` must be a folder, not {weights!r}", field="options.weights")
    return Path(weights), steps, dtypes[name]


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
    world.autoencoder.to(device=device, dtype=dtype).to(memory_format=torch.channels_last)
    world.prompt_encoder.to(device=device)


def _warm_up(family: WanWorld) -> None:
    session = family.open_session("warm-up", seed=0, prompt="", options={})
    for chunk in range(WARM_UP_CHUNKS):
        family.step(session, StepInput("warm-up", chunk, Controls()), lambda: None)


def _check_prompt(prompt: str) -> None:
    if len(prompt) > MAX_PROMPT_CHARACTERS:
        raise FamilyInputError(f"the prompt has {len(prompt)} characters; at most {MAX_PROMPT_CHARACTERS} are allowed")


def _ids(prompt: str) -> torch.Tensor:
    return torch.tensor([padded_ids(word_ids(prompt))])
