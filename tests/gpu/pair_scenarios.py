"""What rank processes with a GPU each do; started by the zygote of tests/process, which touches no device itself."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from ithaka.comm_ext.ulysses.plan import balanced_splits
from ithaka.workers.families.base import Controls, StepInput
from ithaka.workers.i420 import rgb_to_i420
from tests.fused_cases import Case, draw
from tests.gpu.fused_checks import check_fused_cases, check_fused_graphs
from tests.gpu.process_scenarios import take_device
from tests.process.ulysses_scenarios import RankContext

FRAMES = 8
KEYS = ({"KeyW"}, {"KeyW", "ArrowLeft"}, {"KeyD"}, set[str]())


class Processes:
    """Ranks in processes of their own need no turns (see exchange_checks.Together)."""

    def meet(self) -> None:
        """What was issued is done."""
        torch.cuda.synchronize()

    def alone(self) -> AbstractContextManager[object]:
        """Nothing to keep others from."""
        return nullcontext()


def fused(context: RankContext) -> dict[str, Any]:
    """Every case of the fused call, then graphs with late ranks."""
    device = take_device(context)

    def delay(turn: int) -> None:
        if turn % (3 * context.num_ranks) == 3 * context.rank:
            torch.cuda._sleep(1_000_000)  # type: ignore[no-untyped-call]

    stream: torch.cuda.Stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(stream), context.open(device=device, max_bytes=1 << 29, timeout_s=15.0) as communicator:
        check_fused_cases(communicator, rounds=2)
        check_fused_graphs(communicator, 40, delay, Processes())
        torch.cuda.synchronize()
        communicator.check()
    return {"checked": True}


def compiled(context: RankContext) -> dict[str, Any]:
    """A graph by the default compiler, with values sent from memory that it would gladly use again, against eager calls."""
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # no processes of the compiler's own
    device = take_device(context)
    splits = balanced_splits(24, context.num_ranks)
    case = Case((4096,) * context.num_ranks, splits, splits, 128, torch.bfloat16, "row", "interleaved")
    transform = draw(case, context.rank, device, 0).transform
    norm, rope = transform.norm, transform.rope
    with context.open(device=device, max_bytes=1 << 30, timeout_s=15.0, backend=context.options["backend"]) as communicator:

        def block(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, ...]:
            communicator.scatter_heads_async(v * 2, "ahead")
            later = v * 5
            scattered = communicator.fused_qk_norm_rope_scatter(q, k, later, norm=norm, rope=rope)
            (ahead,) = communicator.wait("ahead")
            return (*scattered, ahead, communicator.gather_heads(ahead * 2))

        graph = torch.compile(block, fullgraph=True)
        equal = 0
        for turn in range(3):
            drawn = draw(case, context.rank, device, turn)
            wanted = [each.clone() for each in block(*drawn.qkv)]
            equal += all(torch.equal(got, each) for got, each in zip(graph(*drawn.qkv), wanted, strict=True))
        torch.cuda.synchronize()
        communicator.check()
    return {"equal": equal}


def world(context: RankContext) -> dict[str, Any]:
    """A walk on the ranks' GPUs against the same on the CPU of rank 0: how far apart pictures are."""
    import ithaka.workers.families.wan.family  # noqa: F401 - brings packages that look for a device: not before the fork

    context.say("imported")
    device = take_device(context)
    if context.num_ranks == 1:
        made = _walk(device, 0, 1, None, context.options["dtype"])
    else:
        with context.open(device=device, max_bytes=1 << 26, timeout_s=15.0) as communicator:
            made = _walk(device, context.rank, context.num_ranks, communicator, context.options["dtype"])
            communicator.check()
    if context.rank:
        return {"frames": len(made)}
    context.say("walked")
    wanted = _walk(torch.device("cpu"), 0, 1, None, "float32")
    apart = [(got.int() - frame.int()).abs() for got, frame in zip(made, wanted, strict=True)]
    return {"furthest": [int(x.max()) for x in apart], "mean": max(float(x.float().mean()) for x in apart)}


def _walk(device: torch.device, rank: int, num_ranks: int, communicator: Any, dtype: str) -> list[torch.Tensor]:
    """I420 on the CPU on rank 0, nothing elsewhere."""
    from ithaka.workers.families.wan.family import load

    family = load(
        model="labyrinth",
        options={"dtype": dtype},
        device=device,
        rank=rank,
        num_ranks=num_ranks,
        communicator=communicator,
    )
    session = family.open_session("walk", seed=3, prompt="ice", options={})
    pictures = []
    for chunk in range(FRAMES):
        controls = Controls(held=frozenset(KEYS[chunk % len(KEYS)]))
        made = family.step(session, StepInput("walk", chunk, controls), lambda: None)
        if made is not None:
            assert made.device == device
            pictures.append(rgb_to_i420(made).cpu())
    return pictures


SCENARIOS = {"fused": fused, "compiled": compiled, "world": world}
