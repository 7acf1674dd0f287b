"""The life of a configured rank: join the group, load the model, serve, leave."""

from __future__ import annotations

import contextlib
import gc

import structlog
import torch

from ithaka.comm_ext.channel.host_shm import open_producer
from ithaka.comm_ext.ulysses.errors import UlyssesError, UlyssesPeerError
from ithaka.workers.child_socket import ChildSocket
from ithaka.workers.contract import ConfigureRank, ModelDescription, WorkerFailed, WorkerReady
from ithaka.workers.device import pick_device
from ithaka.workers.families.base import FamilyError, FamilyLoadError, FamilySpec
from ithaka.workers.families.registry import resolve
from ithaka.workers.fault import FaultPoints
from ithaka.workers.group import LEADER, Group, GroupBrokenError
from ithaka.workers.loop import FollowerLoop, LeaderLoop
from ithaka.workers.pulse import Pulse
from ithaka.workers.runner import FramePublisher, Runner
from ithaka.workers.session_memory import SessionMemory

_log = structlog.get_logger()


def serve_rank(control: ChildSocket, configure: ConfigureRank, fds: list[int], num_threads: int, faults: FaultPoints) -> int:
    """Exit status 0 after Shutdown (StopRank on a follower), 1 after a failure, which is reported."""
    torch.set_num_threads(num_threads)
    pulse = Pulse(control, configure.heartbeat_interval_s)
    code = "start_failed"
    try:
        # Imported before the ranks meet: from then on they wait for each other for seconds only.
        load = resolve(configure.family)
        group = Group.join(configure, fds)
        family = load(
            model=configure.model,
            options=configure.options,
            device=pick_device(configure.device, configure.rank, configure.num_ranks),
            rank=configure.rank,
            num_ranks=configure.num_ranks,
            communicator=group.communicator,
        )
        code = "step_failed"
        gc.freeze()
        gc.enable()
        control.send(WorkerReady(configure.rank, _described(family.spec)))
        pulse.start()
        memory = SessionMemory(family, configure.max_sessions)
        runner = Runner(family, group, memory, pulse, faults)
        _serve(control, group, family.spec, memory, runner, pulse, faults)
        memory.close_all()
        group.close()
        return 0
    except Exception as error:
        # The group falls with this rank, so nothing is left to close in order; the process's end frees it all.
        _log.error("rank.failed", exc_info=True)
        with contextlib.suppress(OSError):
            control.send(_failed(configure, error, code))
        return 1
    finally:
        pulse.stop()


def _serve(
    control: ChildSocket,
    group: Group,
    spec: FamilySpec,
    memory: SessionMemory,
    runner: Runner,
    pulse: Pulse,
    faults: FaultPoints,
) -> None:
    if group.rank != LEADER:
        FollowerLoop(group=group, memory=memory, runner=runner, pulse=pulse, faults=faults).run()
        return
    LeaderLoop(
        control=control,
        group=group,
        spec=spec,
        memory=memory,
        runner=runner,
        pulse=pulse,
        faults=faults,
        open_channel=lambda fds: FramePublisher(open_producer(fds), faults),
    ).run()


def _described(spec: FamilySpec) -> ModelDescription:
    return ModelDescription(
        model=spec.model,
        family=spec.family,
        width=spec.width,
        height=spec.height,
        fps=spec.fps,
        chunk_frames=spec.chunk_frames,
        controls=spec.controls,
        takes_prompt=spec.takes_prompt,
        takes_pointer=spec.takes_pointer,
        weights=spec.weights,
    )


def _failed(configure: ConfigureRank, error: Exception, code: str) -> WorkerFailed:
    """``code`` is for an error that brings none of its own."""
    rank = configure.rank
    if isinstance(error, FamilyError | UlyssesError | GroupBrokenError):
        code = str(error.code)
    culprit = error.rank if isinstance(error, UlyssesPeerError | GroupBrokenError) else rank
    field = error.field if isinstance(error, FamilyLoadError) else ""
    subject = f"models.{configure.model}.{field}" if field else type(error).__name__
    return WorkerFailed(rank, code, f"{subject}: {error}", culprit)
