"""How fast the shipped labyrinth walks on this machine's CPU: frames per second, and where the time goes.

``python -m benchmarks.labyrinth --ranks 2 --threads 1`` starts two processes that share each frame; ``--decode-apart`` one that
makes latents and one that decodes them, as ``stages: {denoise: [0], decode: [1]}`` does; without either one process walks
alone and a table of its parts follows. Frames are converted to I420, as for an encoder.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.labyrinth_apart import walk_apart
from ithaka.comm_ext.ulysses.communicator import UlyssesCommunicator
from ithaka.comm_ext.ulysses.group import GroupDescriptors, RankGroup
from ithaka.workers.families.base import Controls, StepInput
from ithaka.workers.families.wan.family import WanWorld, load
from ithaka.workers.frame_publisher import checked_i420

WARM_FRAMES = 20
"""Frames until the memory's window is full."""
WINDOW_BYTES = 64 << 20
HELD = (frozenset({"KeyW"}), frozenset({"ArrowLeft"}))


def main() -> None:
    """Run alone, or as the parent or a child of a group."""
    options = _parser().parse_args()
    if options.decode_apart:
        walk_apart(options, HELD, WARM_FRAMES)
        return
    if options.ranks > 1 and options.fds is None:
        _run_group(options.ranks)
        return
    torch.set_num_threads(options.threads)
    group = None
    if options.fds is not None:
        group = RankGroup.from_fds(rank=options.rank, num_ranks=options.ranks, fds=options.fds)
    with UlyssesCommunicator(group, max_bytes=WINDOW_BYTES) as communicator:
        _walk(options, communicator if options.ranks > 1 else None)


def _walk(options: argparse.Namespace, communicator: UlyssesCommunicator | None) -> None:
    model_options = {"dtype": options.dtype} | ({"steps": options.steps} if options.steps else {})
    started = time.perf_counter()
    family = load(
        model="labyrinth",
        options=model_options,
        device=torch.device("cpu"),
        rank=options.rank,
        num_ranks=options.ranks,
        communicator=communicator,
    )
    load_s = time.perf_counter() - started
    stages: dict[str, list[float]] = defaultdict(list)
    if options.ranks == 1:
        _time_stages(family, stages)
    session = family.open_session("benchmark", seed=1, prompt="sunset", options={})
    seconds = []
    for chunk in range(WARM_FRAMES + options.frames):
        if chunk == WARM_FRAMES:
            stages.clear()
        before = time.perf_counter()
        frames = family.step(session, StepInput("benchmark", chunk, Controls(held=HELD[chunk // 16 % 2])), lambda: None)
        if frames is not None:
            checked_i420(frames, family.spec)
        seconds.append(time.perf_counter() - before)
    if options.rank == 0:
        _report(options, load_s, seconds[WARM_FRAMES:], stages)


def _report(options: argparse.Namespace, load_s: float, seconds: list[float], stages: dict[str, list[float]]) -> None:
    ms = sorted(1000 * s for s in seconds)
    print(
        f"ranks {options.ranks}, threads per rank {options.threads}, dtype {options.dtype}, steps {options.steps or 'shipped'}"
    )
    print(f"load and warm-up {load_s:.2f} s")
    print(
        f"{len(ms) / sum(seconds):.1f} frames/s; ms per frame: median {statistics.median(ms):.1f}, "
        f"best {ms[0]:.1f}, p95 {ms[int(0.95 * len(ms))]:.1f}"
    )
    for stage, spent in stages.items():
        print(f"  {stage:28s} {1000 * sum(spent) / len(ms):6.2f} ms a frame in {len(spent) / len(ms):.1f} calls")


def _time_stages(family: WanWorld, stages: dict[str, list[float]]) -> None:
    """Wrap the parts of a step, on this instance only."""
    sampler, model = family._denoiser._sampler, family._denoiser._sampler._model

    def timed(owner: Any, name: str, stage: Callable[..., str]) -> None:
        inner = getattr(owner, name)

        def call(*arguments: Any, **named: Any) -> Any:
            before = time.perf_counter()
            result = inner(*arguments, **named)
            stages[stage(*arguments)].append(time.perf_counter() - before)
            return result

        object.__setattr__(owner, name, call)

    timed(model, "run", lambda tokens, *_: "transformer, " + ("1 row", "2 rows (with KV write)")[tokens.shape[0] - 1])
    timed(sampler, "_noise", lambda *_: "noise")
    timed(sampler, "_told", lambda *_: "controls")
    timed(family._decoder._autoencoder, "decode", lambda *_: "decode")


def _run_group(num_ranks: int) -> None:
    descriptors = GroupDescriptors.create(num_ranks)
    command = [sys.executable, "-m", "benchmarks.labyrinth", *sys.argv[1:], "--fds", *map(str, descriptors.fds)]
    children = [subprocess.Popen([*command, "--rank", str(rank)], pass_fds=descriptors.fds) for rank in range(num_ranks)]
    descriptors.close()
    sys.exit(max(abs(child.wait()) for child in children))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--decode-apart", action="store_true", help="a second process decodes")
    parser.add_argument("--threads", type=int, default=1, help="per rank")
    parser.add_argument("--steps", type=int, default=0, help="0 is the shipped number")
    parser.add_argument("--dtype", default="auto", choices=("auto", "float32", "bfloat16"))
    parser.add_argument("--frames", type=int, default=100)
    parser.add_argument("--rank", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--fds", type=int, nargs=2, help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    main()
