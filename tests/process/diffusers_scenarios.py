"""What rank processes do with transformers of diffusers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from diffusers import ContextParallelConfig, WanTransformer3DModel
from diffusers.models import attention_dispatch
from tests.process.ulysses_scenarios import RankContext

from ithaka.workers.layers.diffusers_hook import SEAM, DiffusersSeamError, attention_through

HEADS = {"even": 4, "odd": 5}
config: Any = ContextParallelConfig


def tiny_wan(num_heads: int) -> Any:
    """The same weights on every rank."""
    torch.manual_seed(0)
    build: Any = WanTransformer3DModel
    return build(
        patch_size=(1, 2, 2),
        num_attention_heads=num_heads,
        attention_head_dim=16,
        in_channels=4,
        out_channels=4,
        text_dim=8,
        freq_dim=16,
        ffn_dim=32,
        num_layers=3,
        rope_max_seq_len=32,
    ).eval()


def run(model: Any, seed: int, width: int) -> torch.Tensor:
    """A forward on inputs that are the same on every rank."""
    generator = torch.Generator().manual_seed(seed)
    latents = torch.randn(2, 4, 3, 8, width, generator=generator)
    words = torch.randn(2, 7, 8, generator=generator)
    levels = torch.randint(0, 1000, (2, 3 * 4 * (width // 2)), generator=generator)
    with torch.no_grad():
        out: torch.Tensor = model(hidden_states=latents, timestep=levels, encoder_hidden_states=words, return_dict=False)[0]
    return out


def transformer(context: RankContext) -> dict[str, Any]:
    """A whole forward on all ranks against the same on one, and how many exchanges that took."""
    torch.use_deterministic_algorithms(True)
    store = dist.FileStore(  # type: ignore[attr-defined]
        context.options["store"], context.num_ranks
    )
    dist.init_process_group("cpu:gloo", store=store, rank=context.rank, world_size=context.num_ranks)
    uneven = context.options["heads"] == "odd"
    model = tiny_wan(HEADS[context.options["heads"]])
    width = 6 if uneven else 8
    wanted = [run(model, seed, width) for seed in range(3)]
    degree = context.num_ranks
    with patch("torch.accelerator.device_count", return_value=1):  # diffusers counts devices also where there is but a CPU
        model.enable_parallelism(config=config(ulysses_degree=degree, ulysses_anything=uneven))
    tokens = 3 * 4 * (width // 2)
    splits = [tokens // degree + (rank < tokens % degree) for rank in range(degree)] if uneven else None
    before = getattr(attention_dispatch, SEAM)
    with context.open(max_bytes=16 << 20) as communicator:
        with attention_through(communicator, seq_splits=splits):
            got = [run(model, seed, width) for seed in range(3)]
        calls = communicator.describe()["calls"]
        restored = getattr(attention_dispatch, SEAM) is before
        dist.barrier()
    dist.destroy_process_group()
    apart = max(float((one - other).abs().max()) for one, other in zip(got, wanted, strict=True))
    return {"apart": apart, "calls": calls, "restored": restored}


def mismatch(context: RankContext) -> dict[str, Any]:
    """A model set up for other ranks than the communicator's."""
    parallel = SimpleNamespace(context_parallel_config=config(ulysses_degree=context.num_ranks + 1))
    with context.open() as communicator, attention_through(communicator):
        try:
            x = torch.zeros(1, 4, 2, 8)
            getattr(attention_dispatch, SEAM)(x, x, x, forward_op=None, backward_op=None, _parallel_config=parallel)
        except DiffusersSeamError as error:
            return {"refused": str(error)}
    return {"refused": None}


SCENARIOS = {"transformer": transformer, "mismatch": mismatch}
