"""The life of a configured rank: join the group, load the model, serve, leave."""

from __future__ import annotations

import contextlib
import gc
import logging
from collections.abc import Callable, Sequence

import structlog
import torch

from ithaka.comm_ext.ulysses.errors import UlyssesError, UlyssesPeerError
from ithaka.workers.child_socket import ChildSocket
from ithaka.workers.contract import ConfigureRank, ModelDescription, WorkerFailed, WorkerReady
from ithaka.workers.device import pick_device
from ithaka.workers.families.base import FamilyError, FamilyLoadError, FamilySpec
from ithaka.workers.fault import FaultPoints
from ithaka.workers.group import LEADER, GroupBrokenError
from ithaka.workers.loop import FollowerLoop, LeaderLoop
from ithaka.workers.out_of_memory import OUT_OF_MEMORY, is_out_of_memory
from ithaka.workers.parts import load_parts
from ithaka.workers.pulse import Pulse
from ithaka.workers.runner import Runner
from ithaka.workers.session_memory import SessionMemory
from ithaka.workers.stages.contract import STAGES_APART
from ithaka.workers.stages.process import serve_stage

_log = structlog.get_logger()


def serve_rank(control: ChildSocket, configure: ConfigureRank, fds: list[int], num_threads: int, faults: FaultPoints) -> int:
    """Exit status 0 after Shutdown (the leader's word, elsewhere), 1 after a failure, which is reported."""
    torch.set_num_threads(num_threads)
    pulse = Pulse(control, configure.heartbeat_interval_s)
    code = "start_failed"

    def announce(spec: FamilySpec) -> None:
        nonlocal code
        code = "step_failed"
        gc.freeze()
        gc.enable()
        control.send(WorkerReady(configure.rank, _described(spec)))
        pulse.start()

    try:
        device = pick_device(configure.device, configure.placement.device_index, configure.placement.num_devices)
        if device.type == "cuda":
            torch.cuda.set_device(device)  # streams and events that name none are this one's; no other gets a context
        serve = serve_stage if configure.placement.stage in STAGES_APART else _serve_model
        serve(control, configure, fds, device, pulse, faults, announce)
        return 0
    except Exception as error:
        # The group falls with this rank, so nothing is left to close in order; the process's end frees it all.
        report = _failed(configure, error, code)
        # What has a code of its own the server tells in one line; the way there is for who looks for it.
        _log.log(logging.ERROR if report.code == code else logging.DEBUG, "rank.failed", code=report.code, exc_info=True)
        with contextlib.suppress(OSError):
            control.send(report)
        return 1
    finally:
        pulse.stop()


def _serve_model(
    control: ChildSocket,
    configure: ConfigureRank,
    fds: Sequence[int],
    device: torch.device,
    pulse: Pulse,
    faults: FaultPoints,
    announce: Callable[[FamilySpec], None],
) -> None:
    """Returns after Shutdown (StopRank on a follower). Raises what breaks the group."""
    num_takers = len(configure.placement.takers)
    takers = [ChildSocket.from_fd(fd) for fd in fds[len(fds) - num_takers :]]
    parts = load_parts(configure, fds[: len(fds) - num_takers], device)
    memory = SessionMemory(parts.model, configure.max_sessions)
    runner = Runner(parts.compute, parts.model.spec, parts.group, memory, pulse, faults)
    if parts.group.rank == LEADER:
        outlet = parts.outlet(takers, pulse, faults)
        announce(parts.model.spec)
        LeaderLoop(
            control=control,
            group=parts.group,
            spec=parts.model.spec,
            memory=memory,
            runner=runner,
            pulse=pulse,
            faults=faults,
            outlet=outlet,
        ).run()
    else:
        announce(parts.model.spec)
        FollowerLoop(group=parts.group, memory=memory, runner=runner, pulse=pulse, faults=faults).run()
    memory.close_all()
    parts.group.close()


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
    subject = type(error).__name__
    told = " ".join(str(error).split())
    if isinstance(error, FamilyLoadError):
        subject = ".".join(part for part in ("models", configure.model, error.field) if part)
    if isinstance(error, FamilyError | UlyssesError | GroupBrokenError):
        code = str(error.code)
    elif is_out_of_memory(error):
        code = OUT_OF_MEMORY
        subject = f"models.{configure.model}"
        told = (
            f"no memory is left on {configure.device} ({told.partition('. ')[0]}). Stop what else runs there, lower "
            "max_sessions, or give the model more ranks or another device."
        )
    culprit = error.rank if isinstance(error, UlyssesPeerError | GroupBrokenError) else rank
    return WorkerFailed(rank, code, f"{subject}: {told}", culprit)
