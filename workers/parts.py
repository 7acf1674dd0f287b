"""What a rank serves with: the whole model, or a denoiser and a way for its latents. The same choice on every rank."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from ithaka.workers.child_socket import ChildSocket
from ithaka.workers.contract import ConfigureRank
from ithaka.workers.families.base import ModelFamily
from ithaka.workers.families.registry import resolve, resolve_stages
from ithaka.workers.families.stages import Denoiser
from ithaka.workers.fault import FaultPoints
from ithaka.workers.group import Group
from ithaka.workers.outlet import FrameOutlet, Outlet
from ithaka.workers.pulse import Pulse
from ithaka.workers.runner import Compute
from ithaka.workers.stages.memory import memory_for
from ithaka.workers.stages.outlet import LatentsOutlet
from ithaka.workers.stages.overlapped import STEP_PRIORITY, OverlappedOutlet

OpenOutlet = Callable[[Sequence[ChildSocket], Pulse, FaultPoints], Outlet]
"""The leader's, with the sockets of those who take its latents."""


@dataclass(frozen=True, slots=True)
class Parts:
    """``compute`` is a method of ``model``."""

    group: Group
    model: ModelFamily | Denoiser
    compute: Compute
    outlet: OpenOutlet


def load_parts(configure: ConfigureRank, fds: Sequence[int], device: torch.device) -> Parts:
    """Join the group, whose descriptors are ``fds``, and load what this rank's stage needs. Raises FamilyLoadError, WireError,
    UlyssesError.
    """
    stage = configure.placement.stage
    # A CPU's cores have one queue, so nothing gives way there: the step decodes.
    if stage == "whole" or (stage == "overlapped" and device.type == "cpu"):
        return _whole(configure, fds, device)
    return _split(configure, fds, device)


def _whole(configure: ConfigureRank, fds: Sequence[int], device: torch.device) -> Parts:
    # Imported before the ranks meet: from then on they wait for each other for seconds only.
    load = resolve(configure.family)
    group = Group.join(configure, fds, device)
    family = load(
        model=configure.model,
        options=configure.options,
        device=device,
        rank=configure.rank,
        num_ranks=configure.num_ranks,
        communicator=group.communicator,
    )
    return Parts(group, family, family.step, lambda _takers, _pulse, faults: FrameOutlet(faults))


def _split(configure: ConfigureRank, fds: Sequence[int], device: torch.device) -> Parts:
    loaders = resolve_stages(configure.family)
    names = configure.placement.takers
    is_overlapped = configure.placement.stage == "overlapped"
    if is_overlapped:
        torch.cuda.set_stream(torch.cuda.Stream(device, priority=STEP_PRIORITY))  # type: ignore[no-untyped-call]
    group = Group.join(configure, fds, device)
    denoiser = loaders.denoiser(
        model=configure.model,
        options=configure.options,
        device=device,
        rank=configure.rank,
        num_ranks=configure.num_ranks,
        communicator=group.communicator,
    )

    def to_stages(takers: Sequence[ChildSocket], _pulse: Pulse, faults: FaultPoints) -> Outlet:
        return LatentsOutlet.connect(
            memory_for(configure),
            takers,
            ["newest" if taker == "verify" and not denoiser.needs_every_chunk else "fifo" for taker in names],
            latents_bytes=denoiser.latents_bytes,
            first_taker=configure.num_ranks,
            chunk_frames=denoiser.spec.chunk_frames,
            check=group.check,
            faults=faults,
        )

    def to_thread(_takers: Sequence[ChildSocket], pulse: Pulse, faults: FaultPoints) -> Outlet:
        decoder = loaders.decoder(model=configure.model, options=configure.options, device=device)
        return OverlappedOutlet(decoder, device, check=group.check, pulse=pulse, faults=faults)

    return Parts(group, denoiser, denoiser.denoise, to_thread if is_overlapped else to_stages)
