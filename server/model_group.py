"""One model's ranks as the engine uses them, and the channel of frames that comes from their leader."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterator

from ithaka.comm_ext.channel.host_shm import HostChannel
from ithaka.comm_ext.ulysses.group import GroupDescriptors
from ithaka.configs.schema import LogSection, ModelSection, SupervisorSection
from ithaka.server.child_process import ChildFailure, ChildProcess, ChildSpec
from ithaka.server.encode_service import EncodeService
from ithaka.server.engine_client import FramesCompared, ModelState, ModelStatus
from ithaka.server.frame_comparison import FrameComparison
from ithaka.workers import contract
from ithaka.workers.child_socket import ChildSocket, close_fds
from ithaka.workers.stages.contract import STAGES_APART, FramesDigested, Placement, Stage

_MIN_FRAME_SLOTS = 8
_CHUNKS_IN_CHANNEL = 3
"""One that is written, one that is encoded, one between."""


class ModelGroup:
    """A tenant of ``upkeep``. Its leader serves sessions while the group is up and encode is attached to its frames."""

    def __init__(
        self,
        section: ModelSection,
        limits: SupervisorSection,
        log: LogSection,
        channel_ids: Iterator[int],
        *,
        on_session_report: Callable[[ModelGroup, contract.Report], None],
        on_compared: Callable[[FramesCompared], None],
        on_up: Callable[[ModelGroup], None],
        on_down: Callable[[ModelGroup, ChildFailure], Awaitable[None]],
        on_change: Callable[[ModelGroup], None],
    ) -> None:
        """``on_down`` comes when every rank is dead, ``on_change`` when ``status`` may differ."""
        self.name = section.name
        self.description: contract.ModelDescription | None = None
        self.next_faults: dict[str, tuple[str, ...]] = {}
        """What each child is to suffer in the next start; for tests."""
        self._section, self._limits, self._log_section = section, limits, log
        self._channel_ids = channel_ids
        self._comparison = FrameComparison(section.name, on_compared)
        self._on_session_report, self._on_up, self._on_down, self._on_change = on_session_report, on_up, on_down, on_change
        self._leader: ChildProcess | None = None
        self._publisher: ChildProcess | None = None
        """Where frames come from: the leader, or the decode stage."""
        self._frames: HostChannel | None = None
        self._restarts = 0
        self._message = ""
        self._gave_up = False
        self._is_stopped = False

    @property
    def can_serve(self) -> bool:
        """Whether a session can be started now."""
        return self._leader is not None and self._frames is not None

    def status(self, encode: EncodeService) -> ModelStatus:
        """What the engine says of this model; ``encode`` has its part in it."""
        if self._is_stopped:
            state, message = ModelState.STOPPED, ""
        elif self._gave_up or encode.gave_up:
            state, message = ModelState.FAILED, self._message or encode.message
        elif self.can_serve:
            state, message = ModelState.READY, ""
        else:
            state = ModelState.STARTING if self.description is None else ModelState.RESTARTING
            message = self._message or encode.message
        section = self._section
        return ModelStatus(section.name, state, section.max_sessions, section.ranks, self.description, self._restarts, message)

    # -- what the engine asks ------------------------------------------------------------------------------------------

    def send(self, command: contract.Command) -> None:
        """To the leader; nowhere while there is none."""
        if self._leader is not None:
            self._leader.send(command)

    def attach(self, encode: EncodeService) -> None:
        """Give encode and who publishes a new channel for frames, where both are up. The old one's frames are lost."""
        self.detach()
        if self._publisher is None or self.description is None or not encode.is_up:
            return
        description = self.description
        num_slots = max(_MIN_FRAME_SLOTS, _CHUNKS_IN_CHANNEL * description.chunk_frames)
        frame_bytes = description.width * description.height * 3 // 2
        self._frames = HostChannel.create(next(self._channel_ids), num_slots, frame_bytes, 1)
        encode.attach_frames(self._frames)
        self._publisher.send(contract.AttachFrames(self._frames.channel_id), self._frames.describe())

    def detach(self) -> None:
        """Encode is gone, or its turn is over: let who publishes write on without it. Idempotent."""
        if self._frames is not None:
            self._frames.drop_consumer(0)
            self._frames.close()
            self._frames = None

    async def drain(self, encode: EncodeService, timeout_s: float) -> None:
        """The group is dead: have what it published encoded, and let go of the channel."""
        frames, self._frames = self._frames, None
        if frames is None:
            return
        try:
            frames.close_producer()
            await encode.drain_frames(frames, timeout_s)
        finally:
            frames.close()

    def close(self) -> None:
        """Every rank is gone, for good. Idempotent."""
        self._leader = self._publisher = None
        self._is_stopped = True
        self.detach()
        self._on_change(self)

    # -- tenant --------------------------------------------------------------------------------------------------------

    def specs(self) -> tuple[ChildSpec, ...]:
        places = places_of(self._section)
        fds = rank_fds(self._section.ranks, num_takers=len(places) - self._section.ranks)
        faults, self.next_faults = self.next_faults, {}
        return tuple(
            ChildSpec(
                name := f"{self.name}/{place.stage if place.stage in STAGES_APART else number}",
                contract.WORKER_ENTRY,
                self._configure(number, place),
                fds=fds[number],
                faults=faults.get(name, ()),
                obeys_shutdown=number == 0,
            )
            for number, place in enumerate(places)
        )

    def on_up(self, children: tuple[ChildProcess, ...], reports: tuple[contract.Report, ...]) -> None:
        self._leader = children[0]
        self._publisher = next((child for child in children if child.name == f"{self.name}/decode"), self._leader)
        ready = reports[0]
        assert isinstance(ready, contract.WorkerReady)
        self.description = ready.description
        self._message = ""
        self._on_up(self)
        self._on_change(self)

    def on_report(self, child: ChildProcess, report: contract.Report) -> None:
        if isinstance(report, FramesDigested):
            self._comparison.add(child.name, report)
        else:
            self._on_session_report(self, report)

    async def on_down(self, failure: ChildFailure) -> None:
        self._leader = self._publisher = None
        self._restarts += 1
        self._message = f"{failure.child} {failure.message}"
        self._on_change(self)
        await self._on_down(self, failure)

    def on_failed_start(self, failure: ChildFailure, *, gave_up: bool) -> None:
        self._gave_up = gave_up
        self._message = f"{failure.child} {failure.message}"
        self._on_change(self)

    def _configure(self, number: int, place: Placement) -> contract.ConfigureRank:
        section, limits = self._section, self._limits
        return contract.ConfigureRank(
            group=section.name,
            rank=number,
            num_ranks=section.ranks,
            model=section.name,
            family=section.family,
            device=section.device,
            placement=place,
            num_threads=section.threads_per_rank,
            max_sessions=section.max_sessions,
            heartbeat_interval_s=limits.heartbeat_interval_s,
            communicator_timeout_s=limits.communicator_timeout_s,
            options=section.options,
            log_level=self._log_section.level,
            log_format=self._log_section.format,
        )


def places_of(section: ModelSection) -> tuple[Placement, ...]:
    """The group's processes in the order of their start: the ranks, then the stages apart."""
    stages = section.stages
    if stages is None:
        return tuple(Placement("whole", rank, section.ranks, section.ranks) for rank in range(section.ranks))
    if not stages.is_apart:
        return tuple(Placement("overlapped", index, stages.num_devices, section.ranks) for index in stages.denoise)
    apart: list[tuple[Stage, int]] = [("decode", index) for index in stages.decode]
    apart += [("verify", index) for index in stages.verify]
    takers = tuple(stage for stage, _ in apart)
    latents_devices = (stages.denoise[0], *(index for _, index in apart))
    num_processes = section.ranks + len(apart)

    def place(stage: Stage, index: int, *, has_latents: bool) -> Placement:
        channel = (takers, latents_devices) if has_latents else ((), ())
        return Placement(stage, index, stages.num_devices, num_processes, *channel)

    ranks = [place("denoise", index, has_latents=index == stages.denoise[0]) for index in stages.denoise]
    return (*ranks, *(place(stage, index, has_latents=True) for stage, index in apart))


def rank_fds(num_ranks: int, *, num_takers: int = 0) -> tuple[tuple[int, ...], ...]:
    """Each process's descriptors, as ConfigureRank orders them, the ranks before the takers; each its own copies."""
    processes: list[list[int]] = [[] for _ in range(num_ranks + num_takers)]
    ranks = processes[:num_ranks]
    try:
        if num_ranks > 1:
            descriptors = GroupDescriptors.create(num_ranks)
            try:
                for fds in ranks:
                    fds.extend(os.dup(fd) for fd in descriptors.fds)
            finally:
                descriptors.close()
        for other in processes[1:]:
            ours, theirs = ChildSocket.pair()
            processes[0].append(ours.detach())
            other.append(theirs.detach())
    except BaseException:
        for fds in processes:
            close_fds(fds)
        raise
    return tuple(tuple(fds) for fds in processes)
