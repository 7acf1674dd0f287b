"""A real engine with its children, and what it said, for tests to wait on."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Self

import av
import numpy as np
import psutil

from ithaka.configs.schema import ModelSection, ServeConfig, SupervisorSection
from ithaka.server.engine_client import (
    EngineEvent,
    EngineSessionEnded,
    EngineSessionStarted,
    ModelChanged,
    ModelState,
    ModelStatus,
    PacketArrived,
    SessionRequest,
)
from ithaka.server.supervisor import LocalEngine
from ithaka.workers.contract import Pixels
from ithaka.workers.families.synthetic.barcode import Barcode, read

WAIT_S = 40
"""Limit of each wait; nothing here takes that long unless it is broken."""

LIMITS = SupervisorSection(
    heartbeat_interval_s=0.1,
    heartbeat_timeout_s=1.5,
    step_timeout_s=1.5,
    communicator_timeout_s=5,
    restart_backoff_s=0.05,
    max_failed_starts=2,
)


def synthetic(name: str = "s", *, ranks: int = 1, max_sessions: int = 4, **options: Any) -> ModelSection:
    """A small synthetic model on the CPU, two frames a chunk."""
    return ModelSection.model_validate(
        {
            "name": name,
            "family": "synthetic",
            "ranks": ranks,
            "device": "cpu",
            "threads_per_rank": 1,
            "max_sessions": max_sessions,
            "options": {"width": 128, "height": 64, "chunk_frames": 2, **options},
        }
    )


class EngineRun:
    """``async with``: started on entry, stopped on exit. Grants ``windows[session]`` frames beyond each arrived one."""

    def __init__(
        self,
        *models: ModelSection,
        limits: SupervisorSection = LIMITS,
        faults: Mapping[str, tuple[str, ...]] | None = None,
    ) -> None:
        self.engine = LocalEngine(ServeConfig(models=models, supervisor=limits), faults=faults)
        self.events: list[EngineEvent] = []
        self.windows: dict[str, int] = {}
        self._changed = asyncio.Event()

    async def __aenter__(self) -> Self:
        await self.engine.start(self._listen)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.engine.stop(deadline_s=5)

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait until ``holds`` is true after some event; fails with the last events otherwise."""
        try:
            async with asyncio.timeout(WAIT_S):
                while not holds():
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise AssertionError(f"waited {WAIT_S} s in vain; the last events: {self.events[-5:]}") from None

    # -- models --------------------------------------------------------------------------------------------------------

    def status(self, model: str = "s") -> ModelStatus:
        return next(status for status in self.engine.models() if status.name == model)

    async def ready(self, model: str = "s") -> ModelStatus:
        await self.until(lambda: self.status(model).state is ModelState.READY)
        return self.status(model)

    def states(self, model: str = "s") -> list[ModelState]:
        """Every state that was reported, in order."""
        return [event.status.state for event in self.events if isinstance(event, ModelChanged) and event.status.name == model]

    # -- sessions ------------------------------------------------------------------------------------------------------

    def begin(
        self,
        session_id: str,
        model: str = "s",
        *,
        window: int = 0,
        seed: int = 1,
        prompt: str = "",
        pixels: Pixels = "lossy",
        **options: Any,
    ) -> None:
        self.windows[session_id] = window
        self.engine.start_session(SessionRequest(session_id, model, seed, prompt, pixels, options))
        if window:
            self.engine.grant(session_id, window)

    async def started(self, session_id: str) -> EngineSessionStarted:
        await self.until(lambda: self._session_event(EngineSessionStarted, session_id) is not None)
        event = self._session_event(EngineSessionStarted, session_id)
        assert isinstance(event, EngineSessionStarted)
        return event

    async def ended(self, session_id: str) -> EngineSessionEnded:
        await self.until(lambda: self._session_event(EngineSessionEnded, session_id) is not None)
        event = self._session_event(EngineSessionEnded, session_id)
        assert isinstance(event, EngineSessionEnded)
        assert self.events[-1] is event or not self._follows(event, session_id)
        return event

    def ended_event(self, session_id: str) -> EngineSessionEnded | None:
        """What ``ended`` waits for, if it came."""
        event = self._session_event(EngineSessionEnded, session_id)
        assert event is None or isinstance(event, EngineSessionEnded)
        return event

    async def frames(self, session_id: str, count: int) -> list[PacketArrived]:
        """Wait for so many packets in all."""
        await self.until(lambda: len(self.packets(session_id)) >= count)
        return self.packets(session_id)

    def packets(self, session_id: str) -> list[PacketArrived]:
        return [event for event in self.events if isinstance(event, PacketArrived) and event.header.session_id == session_id]

    def _session_event(self, kind: type, session_id: str) -> EngineEvent | None:
        matching = (
            event for event in self.events if isinstance(event, kind) and getattr(event, "session_id", "") == session_id
        )
        return next(matching, None)

    def _follows(self, ended: EngineSessionEnded, session_id: str) -> bool:
        later = self.events[self.events.index(ended) + 1 :]
        return any(
            (isinstance(event, PacketArrived) and event.header.session_id == session_id)
            or (isinstance(event, EngineSessionEnded) and event.session_id == session_id)
            for event in later
        )

    def _listen(self, event: EngineEvent) -> None:
        self.events.append(event)
        if isinstance(event, PacketArrived) and (window := self.windows.get(event.header.session_id)):
            self.engine.grant(event.header.session_id, event.header.seq + window)
        self._changed.set()


def barcodes(packets: list[PacketArrived]) -> list[Barcode | None]:
    """What the decoded pictures say."""
    decoder = av.CodecContext.create("h264", "r")
    frames = [frame for packet in packets for frame in decoder.decode(av.Packet(packet.payload))] + decoder.decode(None)
    return [read(np.ascontiguousarray(frame.to_ndarray(format="yuv420p")[: frame.height])) for frame in frames]


def child(name: str) -> psutil.Process:
    """The running child whose entry is ``name``, e.g. ``ithaka.workers.encode``."""
    (found,) = children(name)
    return found


def children(name: str = "ithaka.workers.") -> list[psutil.Process]:
    """This process's living children with that entry, oldest first."""
    found = []
    for process in psutil.Process().children():
        try:
            if process.status() != psutil.STATUS_ZOMBIE and any(name in part for part in process.cmdline()):
                found.append(process)
        except psutil.NoSuchProcess:
            continue
    return sorted(found, key=lambda process: process.create_time())


def descriptors() -> Counter[str]:
    """This process's open descriptors by what they are, sockets and pipes without their numbers."""
    found: Counter[str] = Counter()
    for fd in os.listdir("/proc/self/fd"):
        try:
            found[os.readlink(f"/proc/self/fd/{fd}").partition(":[")[0]] += 1
        except OSError:
            continue
    return found
