"""A stage with a process of its own: load the decoder, serve, leave."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from ithaka.workers.child_socket import ChildSocket
from ithaka.workers.contract import ConfigureRank
from ithaka.workers.families.base import FamilySpec
from ithaka.workers.families.registry import resolve_stages
from ithaka.workers.fault import FaultPoints
from ithaka.workers.outlet import FrameOutlet, Sink
from ithaka.workers.pulse import Pulse
from ithaka.workers.stages.contract import Placement
from ithaka.workers.stages.digests import DigestingOutlet, DigestSink
from ithaka.workers.stages.loop import StageLoop
from ithaka.workers.stages.memory import memory_for
from ithaka.workers.wire import WireError


def serve_stage(
    control: ChildSocket,
    configure: ConfigureRank,
    fds: Sequence[int],
    device: torch.device,
    pulse: Pulse,
    faults: FaultPoints,
    announce: Callable[[FamilySpec], None],
) -> None:
    """Returns after StopStage. ``announce`` is called once it is loaded. Raises what breaks the group."""
    if len(fds) != 1:
        raise WireError(f"the stage {configure.placement.stage} got {len(fds)} descriptors")
    leader = ChildSocket.from_fd(fds[0])
    decoder = resolve_stages(configure.family).decoder(model=configure.model, options=configure.options, device=device)
    announce(decoder.spec)
    loop = StageLoop(
        control=control,
        leader=leader,
        decoder=decoder,
        memory=memory_for(configure),
        sink=_sink_of(configure.placement, control, faults),
        pulse=pulse,
        faults=faults,
    )
    loop.run()
    loop.close()
    leader.close()


def _sink_of(placement: Placement, control: ChildSocket, faults: FaultPoints) -> Sink:
    if placement.stage == "verify":
        return DigestSink(control)
    return DigestingOutlet(control, faults) if "verify" in placement.takers else FrameOutlet(faults)
