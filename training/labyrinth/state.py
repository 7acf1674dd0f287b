"""What a training run leaves for the next: parameters in float32 in files that travel easily, and the step."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import nn

MAX_FILE_BYTES = 14 * 1024 * 1024


def save_state(folder: Path, modules: dict[str, nn.Module], step: int) -> None:
    """Write the modules' tensors as ``state-N.safetensors``."""
    folder.mkdir(parents=True, exist_ok=True)
    for stale in folder.glob("state-*.safetensors"):
        stale.unlink()
    shards: list[dict[str, torch.Tensor]] = [{"step": torch.tensor(step)}]
    filled = 0
    for prefix, module in modules.items():
        for name, tensor in module.state_dict().items():
            num_bytes = tensor.numel() * tensor.element_size()
            if filled + num_bytes > MAX_FILE_BYTES:
                shards.append({})
                filled = 0
            shards[-1][f"{prefix}.{name}"] = tensor.detach().cpu().contiguous()
            filled += num_bytes
    for number, shard in enumerate(shards):
        save_file(shard, folder / f"state-{number}.safetensors")


def load_state(folder: Path, modules: dict[str, nn.Module]) -> int:
    """Fill the modules from a folder of ``save_state``; returns the step."""
    tensors: dict[str, torch.Tensor] = {}
    for file in sorted(folder.glob("state-*.safetensors")):
        tensors.update(load_file(file))
    if not tensors:
        raise FileNotFoundError(f"no state-*.safetensors in {folder}")
    for prefix, module in modules.items():
        own = {name.removeprefix(prefix + "."): t for name, t in tensors.items() if name.startswith(prefix + ".")}
        module.load_state_dict(own)
    return int(tensors["step"])
