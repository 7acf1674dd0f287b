"""The weights folder, laid out as diffusers does: one sub-folder per part, safetensors, configs beside them."""

from __future__ import annotations

import inspect
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save_file
from torch import nn

from ithaka.workers.families.base import FamilyLoadError
from ithaka.workers.families.wan.autoencoder import LATENT_CHANNELS, TinyAutoencoder
from ithaka.workers.families.wan.checksums import INDEX, REPAIR, CheckedFolder, record_checksums
from ithaka.workers.families.wan.model import CausalWanModel
from ithaka.workers.families.wan.prompt import THEME_WORDS, VOCABULARY, PromptEncoder
from ithaka.workers.families.wan.spec import LATENT_SIDE, SamplingSpec
from ithaka.workers.out_of_memory import is_out_of_memory

MAX_FILE_BYTES = 15 * 1024 * 1024
SHOWN_MISFITS = 3
SHIPPED = Path(__file__).parent / "weights" / "labyrinth"
_TENSORS = "diffusion_pytorch_model"


@dataclass(frozen=True, slots=True)
class Starts:
    """Beginnings of walks: clean latents [themes, walks, frames, tokens, channels], controls [themes, walks, frames, 3]."""

    latents: torch.Tensor
    controls: torch.Tensor


@dataclass(frozen=True, slots=True)
class WorldModel:
    """All parts of a model, float32 on the CPU, in eval mode."""

    transformer: CausalWanModel
    autoencoder: TinyAutoencoder
    prompt_encoder: PromptEncoder
    starts: Starts
    sampling: SamplingSpec


def save_world_model(folder: Path, model: WorldModel) -> None:
    """Write every part in float16, in files of at most MAX_FILE_BYTES."""
    folder.mkdir(parents=True, exist_ok=True)
    arguments = inspect.signature(CausalWanModel.__init__).parameters
    config = {name: value for name, value in dict(model.transformer.config).items() if name in arguments}
    _save_part(folder / "transformer", model.transformer.state_dict(), "CausalWanModel", config)
    _save_part(folder / "autoencoder", model.autoencoder.state_dict(), "TinyAutoencoder", {})
    words = {"text_dim": model.prompt_encoder.words.embedding_dim, "vocabulary": list(VOCABULARY)}
    _save_part(folder / "prompt_encoder", model.prompt_encoder.state_dict(), "PromptEncoder", words)
    starts = {"latents": model.starts.latents, "controls": model.starts.controls}
    _save_part(folder / "starts", starts, "Starts", {})
    package = "ithaka.workers.families.wan"
    index = {
        "_class_name": "WorldModel",
        "transformer": [f"{package}.model", "CausalWanModel"],
        "autoencoder": [f"{package}.autoencoder", "TinyAutoencoder"],
        "prompt_encoder": [f"{package}.prompt", "PromptEncoder"],
        "starts": [f"{package}.weights_folder", "Starts"],
        "sampling": model.sampling.to_json(),
    }
    _write_json(folder / INDEX, index)
    record_checksums(folder)


def load_autoencoder(folder: Path) -> TinyAutoencoder:
    """That part alone, as ``load_world_model`` reads it."""
    autoencoder = TinyAutoencoder()
    _fill(autoencoder, _load_part(CheckedFolder(folder), "autoencoder"), folder / "autoencoder")
    return autoencoder


def load_world_model(folder: Path) -> WorldModel:
    """Read a folder that ``save_world_model`` wrote. Raises FamilyLoadError saying what is wrong and what to do."""
    checked = CheckedFolder(folder)
    try:
        sampling = SamplingSpec.from_json(checked.index["sampling"])
        config = checked.read_object("transformer/config.json")
        config.pop("_class_name", None)
        transformer = CausalWanModel(**config)
        words = checked.read_object("prompt_encoder/config.json")
        prompt_encoder = PromptEncoder(int(words["text_dim"]))
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError, RuntimeError) as error:
        if is_out_of_memory(error):
            raise
        raise FamilyLoadError(f"{folder} has a config that does not fit this model: {error!r}. {REPAIR}") from error
    if tuple(words.get("vocabulary", ())) != VOCABULARY:
        raise FamilyLoadError(f"{folder / 'prompt_encoder'} was made for another vocabulary. {REPAIR}")
    autoencoder = TinyAutoencoder()
    parts: tuple[tuple[str, nn.Module], ...] = (
        ("transformer", transformer),
        ("autoencoder", autoencoder),
        ("prompt_encoder", prompt_encoder),
    )
    for name, module in parts:
        _fill(module, _load_part(checked, name), folder / name)
    starts = _load_part(checked, "starts")
    if set(starts) != {"latents", "controls"} or not _are_starts(starts["latents"].shape, starts["controls"].shape):
        raise FamilyLoadError(
            f"{folder / 'starts'} holds no beginnings of walks for each of {len(THEME_WORDS)} looks. {REPAIR}"
        )
    return WorldModel(transformer, autoencoder, prompt_encoder, Starts(**starts), sampling)


def _save_part(folder: Path, state: dict[str, torch.Tensor], class_name: str, config: dict[str, Any]) -> None:
    folder.mkdir(exist_ok=True)
    for stale in folder.glob("*.safetensors*"):
        stale.unlink()
    _write_json(folder / "config.json", {"_class_name": class_name, **config})
    half = {name: tensor.detach().cpu().half().contiguous() for name, tensor in state.items()}
    shards = _shards(half)
    if len(shards) == 1:
        save_file(half, folder / f"{_TENSORS}.safetensors", metadata={"format": "pt"})
        return
    names: dict[str, str] = {}
    for number, shard in enumerate(shards, 1):
        file = f"{_TENSORS}-{number:05d}-of-{len(shards):05d}.safetensors"
        save_file(shard, folder / file, metadata={"format": "pt"})
        names.update(dict.fromkeys(shard, file))
    total = sum(tensor.numel() * tensor.element_size() for tensor in half.values())
    _write_json(folder / f"{_TENSORS}.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": names})


def _shards(state: dict[str, torch.Tensor]) -> list[dict[str, torch.Tensor]]:
    shards: list[dict[str, torch.Tensor]] = [{}]
    filled = 0
    for name, tensor in state.items():
        num_bytes = tensor.numel() * tensor.element_size()
        if filled + num_bytes > MAX_FILE_BYTES * 0.95:
            shards.append({})
            filled = 0
        shards[-1][name] = tensor
        filled += num_bytes
    return shards


def _load_part(checked: CheckedFolder, part: str) -> dict[str, torch.Tensor]:
    index = f"{part}/{_TENSORS}.safetensors.index.json"
    try:
        files = set(checked.read_object(index)["weight_map"].values()) if checked.holds(index) else {f"{_TENSORS}.safetensors"}
        state: dict[str, torch.Tensor] = {}
        for file in sorted(files):
            state.update(load(checked.read(f"{part}/{file}")))
    except (SafetensorError, KeyError, AttributeError, TypeError) as error:
        raise FamilyLoadError(f"{checked.folder / part} can't be read: {error}. {REPAIR}") from error
    return {name: tensor.float() if tensor.is_floating_point() else tensor for name, tensor in state.items()}


def _are_starts(latents: torch.Size, controls: torch.Size) -> bool:
    """Whether they are the shapes of ``Starts``, with beginnings for every look."""
    if len(latents) != 5 or len(controls) != 4 or latents[:3] != controls[:3] or 0 in latents:
        return False
    return (latents[0], *latents[3:], controls[3]) == (len(THEME_WORDS), LATENT_SIDE**2, LATENT_CHANNELS, 3)


def _fill(module: nn.Module, state: dict[str, torch.Tensor], folder: Path) -> None:
    if not all(tensor.isfinite().all() for tensor in state.values()):
        raise FamilyLoadError(f"{folder} holds values that are not numbers. {REPAIR}")
    misfits = _misfits(module.state_dict(), state)
    if misfits:
        more = f"; and {len(misfits) - SHOWN_MISFITS} more" if len(misfits) > SHOWN_MISFITS else ""
        raise FamilyLoadError(f"{folder} does not fit this model: {'; '.join(misfits[:SHOWN_MISFITS])}{more}. {REPAIR}")
    module.load_state_dict(state)
    module.requires_grad_(False).eval()


def _misfits(expected: dict[str, torch.Tensor], found: dict[str, torch.Tensor]) -> list[str]:
    """What a part's tensors lack, have too much, or have in another shape."""
    missing = [f"{name} is missing" for name in expected if name not in found]
    unknown = [f"{name} is unknown" for name in found if name not in expected]
    shapes = [(name, list(tensor.shape), list(found[name].shape)) for name, tensor in expected.items() if name in found]
    return missing + unknown + [f"{name} is {there}, not {wanted}" for name, wanted, there in shapes if wanted != there]


def _write_json(path: Path, data: dict[str, Any]) -> None:
    path.write_text(json.dumps(data, indent=2) + "\n")
