"""What rank processes with a GPU each do; started by the zygote of tests/process, which touches no device itself."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from ithaka.workers.families.base import Controls, StepInput
from ithaka.workers.i420 import rgb_to_i420
from tests.gpu.fused_checks import check_fused_cases, check_fused_graphs
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
    device = torch.device("cuda", context.rank)
    torch.cuda.set_device(device)

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


def world(context: RankContext) -> dict[str, Any]:
    """A walk on the ranks' GPUs against the same on the CPU of rank 0: how far apart pictures are."""
    import ithaka.workers.families.wan.family  # noqa: F401 - brings packages that look for a device: not before the fork

    context.say("imported")
    device = torch.device("cuda", context.rank)
    torch.cuda.set_device(device)
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


SCENARIOS = {"fused": fused, "world": world}
