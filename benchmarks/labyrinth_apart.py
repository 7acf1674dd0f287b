"""The labyrinth as two stages in two processes: the leader's outlet here, a stage's loop in a child."""

from __future__ import annotations

import argparse
import itertools
import select
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence

import torch

from ithaka.comm_ext.channel.host_shm import clear_event
from ithaka.workers.child_socket import ChildSocket
from ithaka.workers.contract import OpenOnRank
from ithaka.workers.families.base import Controls, StepInput
from ithaka.workers.families.stages import Chunk
from ithaka.workers.families.wan.family import load_decoder, load_denoiser
from ithaka.workers.fault import FaultPoints
from ithaka.workers.pulse import Pulse
from ithaka.workers.stages.contract import LatentsHeader
from ithaka.workers.stages.loop import StageLoop
from ithaka.workers.stages.memory import HostMemory
from ithaka.workers.stages.outlet import LatentsOutlet

_SESSION = "benchmark"
_CPU = torch.device("cpu")


class TimedSink:
    """Frames end here; ``at_s`` says when each came."""

    def __init__(self) -> None:
        self.at_s: list[float] = []

    def attach(self, fds: list[int]) -> None:
        raise AssertionError("no frames leave this benchmark")

    def room_frames(self) -> int:
        return 1 << 30

    def wake_fds(self) -> tuple[int, ...]:
        return ()

    def publish(self, chunk: Chunk, header: LatentsHeader) -> None:
        self.at_s.append(time.perf_counter())

    def close(self) -> None:
        pass


def walk_apart(options: argparse.Namespace, held: Sequence[frozenset[str]], warm_frames: int) -> None:
    """``options`` as of ``benchmarks.labyrinth``; the child prints what came of it."""
    torch.set_num_threads(options.threads)
    control, theirs = ChildSocket.pair()
    taker, leader = ChildSocket.pair()
    fds = (theirs.detach(), leader.detach())
    numbers = [str(number) for number in (*fds, options.threads, warm_frames)]
    child = subprocess.Popen([sys.executable, "-m", "benchmarks.labyrinth_apart", options.dtype, *numbers], pass_fds=fds)
    denoiser = load_denoiser(
        model="labyrinth",
        options={"dtype": options.dtype} | ({"steps": options.steps} if options.steps else {}),
        device=_CPU,
        rank=0,
        num_ranks=1,
        communicator=None,
    )
    outlet = LatentsOutlet.connect(
        HostMemory(),
        [taker],
        ["fifo"],
        latents_bytes=denoiser.latents_bytes,
        first_taker=1,
        chunk_frames=1,
        check=lambda: None,
        faults=FaultPoints(),
    )
    outlet.open_session(OpenOnRank(_SESSION, 1, "sunset"))
    session = denoiser.open_session(_SESSION, seed=1, prompt="sunset", options={})
    for chunk in range(warm_frames + options.frames):
        while outlet.room_frames() < 1:
            for fd in select.select(outlet.wake_fds(), [], [])[0]:
                clear_event(fd)
        step = StepInput(_SESSION, chunk, Controls(held=held[chunk // 16 % 2]))
        made = denoiser.denoise(session, step, lambda: None)
        assert made is not None
        outlet.publish(made, LatentsHeader(_SESSION, chunk, chunk + 1, 1, 0))
    outlet.close_session(_SESSION, warm_frames + options.frames, discard=False)
    outlet.close()
    status = child.wait()
    control.close()
    sys.exit(status)


def _decode(dtype: str, control_fd: int, leader_fd: int, threads: int, warm_frames: int) -> None:
    torch.set_num_threads(threads)
    control, sink = ChildSocket.from_fd(control_fd), TimedSink()
    loop = StageLoop(
        control=control,
        leader=ChildSocket.from_fd(leader_fd),
        decoder=load_decoder(model="labyrinth", options={"dtype": dtype}, device=_CPU),
        memory=HostMemory(),
        sink=sink,
        pulse=Pulse(control, 60),
        faults=FaultPoints(),
    )
    loop.run()
    loop.close()
    at_s = sink.at_s[warm_frames - 1 :]
    ms = sorted(1000 * (after - before) for before, after in itertools.pairwise(at_s))
    print(f"decode apart, threads a process {threads}, dtype {dtype}")
    print(
        f"{len(ms) / (at_s[-1] - at_s[0]):.1f} frames/s; ms between frames: median {statistics.median(ms):.1f}, "
        f"best {ms[0]:.1f}, p95 {ms[int(0.95 * len(ms))]:.1f}"
    )


if __name__ == "__main__":
    _decode(sys.argv[1], *(int(number) for number in sys.argv[2:]))
