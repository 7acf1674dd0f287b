"""Other public exchanges in the same process, as far as they are importable: NCCL with permutes, FlashInfer, fast-ulysses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

Call = Callable[[], torch.Tensor]
Maker = Callable[[torch.Tensor], Call]


def find_peers(ranks: int, rank: int, largest_bytes: int) -> dict[str, tuple[Maker, Maker]]:
    """By name, a maker for scatter and one for gather; a maker takes the input and returns the call to time."""
    found: dict[str, tuple[Maker, Maker]] = {"NCCL": (_nccl_scatter(ranks), _nccl_gather(ranks))}
    for name, find in (("FlashInfer", _flashinfer), ("fast-ulysses", _fast_ulysses)):
        try:
            found[name] = find(ranks, rank, largest_bytes)
        except Exception as error:  # whatever keeps a library from working here makes it absent
            if rank == 0:
                print(f"{name} absent: {error!r}"[:200])
    return found


def _nccl_scatter(ranks: int) -> Maker:
    def make(x: torch.Tensor) -> Call:
        _, tokens, heads, dim = x.shape
        packed, out = x.new_empty(ranks, tokens, heads // ranks, dim), x.new_empty(1, tokens * ranks, heads // ranks, dim)

        def call() -> torch.Tensor:
            packed.copy_(x.view(tokens, ranks, heads // ranks, dim).transpose(0, 1))
            dist.all_to_all_single(out.view(-1), packed.view(-1))
            return out

        return call

    return make


def _nccl_gather(ranks: int) -> Maker:
    def make(x: torch.Tensor) -> Call:
        _, tokens, heads, dim = x.shape
        landed, out = x.new_empty(ranks, tokens // ranks, heads, dim), x.new_empty(1, tokens // ranks, heads * ranks, dim)

        def call() -> torch.Tensor:
            dist.all_to_all_single(landed.view(-1), x.view(-1))
            out.view(tokens // ranks, ranks, heads, dim).copy_(landed.transpose(0, 1))
            return out

        return call

    return make


def _flashinfer(ranks: int, rank: int, largest_bytes: int) -> tuple[Maker, Maker]:
    from flashinfer.comm import UlyssesCommunicator  # type: ignore[import-not-found]

    other: Any = UlyssesCommunicator(None, max_bytes=largest_bytes, dtype=torch.bfloat16, backend="nvlink")

    def make(exchange: Callable[..., torch.Tensor], shape: Callable[[torch.Size], tuple[int, ...]]) -> Maker:
        def made(x: torch.Tensor) -> Call:
            out = x.new_empty(shape(x.shape))
            return lambda: exchange(x, out=out)

        return made

    return (
        make(other.scatter_heads, lambda size: (1, size[1] * ranks, size[2] // ranks, size[3])),
        make(other.gather_heads, lambda size: (1, size[1] // ranks, size[2] * ranks, size[3])),
    )


def _fast_ulysses(ranks: int, rank: int, largest_bytes: int) -> tuple[Maker, Maker]:
    from fast_ulysses import UlyssesGroup  # type: ignore[import-not-found]

    group: Any = UlyssesGroup(dist.group.WORLD, torch.device("cuda", rank))

    def make(mode: int) -> Maker:
        def made(x: torch.Tensor) -> Call:
            window = group.empty_output(x, mode=mode)  # its fastest way: the result stays in its window
            return lambda: group.all_to_all_4d(x, mode=mode, out=window)

        return made

    return make(0), make(1)
