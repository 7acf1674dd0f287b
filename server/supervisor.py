"""The engine on one host: an encode process, a group of ranks for each model, and the sessions that run through them."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Mapping

from ithaka.configs.schema import ServeConfig
from ithaka.server.child_process import ChildFailure
from ithaka.server.encode_service import EncodeService
from ithaka.server.engine_client import (
    EngineError,
    EngineEvent,
    EngineListener,
    ModelChanged,
    ModelState,
    ModelStatus,
    PacketArrived,
    SessionRequest,
)
from ithaka.server.engine_sessions import EngineSessions
from ithaka.server.model_group import ModelGroup
from ithaka.server.upkeep import Upkeep
from ithaka.workers import contract

_DRAIN_TIMEOUT_S = 1.5
"""For encoding what a dead leader had published: with the detection of a hang it stays within 5 s."""


class LocalEngine:
    """See ``engine_client.Engine``. Made and used on one event loop, whose thread must live as long as the process."""

    def __init__(self, config: ServeConfig, *, faults: Mapping[str, tuple[str, ...]] | None = None) -> None:
        """``faults``: see ``inject``; for the children's first life."""
        limits, log = config.supervisor, config.log
        channel_ids = itertools.count(1)
        self._encode = EncodeService(
            config.encode,
            limits,
            log,
            channel_ids,
            on_packet=self._on_packet,
            on_session_report=self._on_encode_report,
            on_change=self._on_encode_change,
        )
        self._groups = {
            section.name: ModelGroup(
                section,
                limits,
                log,
                channel_ids,
                on_session_report=self._on_leader_report,
                on_compared=self._emit,
                on_up=self._on_group_up,
                on_down=self._on_group_down,
                on_change=self._on_group_change,
            )
            for section in config.models
        }
        self._encode_upkeep = Upkeep(self._encode, limits)
        self._group_upkeeps = [Upkeep(group, limits) for group in self._groups.values()]
        self._sessions = EngineSessions(self._encode, self._emit)
        self._listener: EngineListener | None = None
        self._reported: dict[str, ModelStatus] = {}
        self._is_stopping = False
        self._stopped: asyncio.Task[None] | None = None
        self.inject(faults or {})

    async def start(self, listener: EngineListener) -> None:
        """Returns at once; readiness comes as ModelChanged. Raises EngineError when it was started or stopped before."""
        if self._listener is not None or self._is_stopping:
            raise EngineError("engine_stopping", "an engine starts once")
        self._listener = listener
        for upkeep in (*self._group_upkeeps, self._encode_upkeep):
            upkeep.start()
        self._report_models()

    def models(self) -> tuple[ModelStatus, ...]:
        return tuple(group.status(self._encode) for group in self._groups.values())

    def start_session(self, request: SessionRequest) -> None:
        """Raises EngineError; beyond the codes of the face: "session_exists", "invalid_session_options"."""
        if self._is_stopping:
            raise EngineError("engine_stopping", "the server is stopping")
        group = self._groups.get(request.model)
        if group is None:
            raise EngineError("model_unknown", f"no model is named {request.model!r}; there are: {', '.join(self._groups)}")
        status = group.status(self._encode)
        if status.state is not ModelState.READY or group.description is None:
            raise EngineError(
                "model_not_ready",
                f"the model {request.model} is {status.state.value}{': ' if status.message else ''}{status.message}",
                retryable=status.state is not ModelState.FAILED,
            )
        self._sessions.start(request, group, group.description)

    def apply_control(self, control: contract.ApplyControl) -> None:
        """Raises EngineError "invalid_control" for one that can't be sent: too large, or no text."""
        self._sessions.apply_control(control)

    def grant(self, session_id: str, through_seq: int) -> None:
        self._sessions.grant(session_id, through_seq)

    def request_key_frame(self, session_id: str, codec: contract.Codec = "h264") -> None:
        self._sessions.request_key_frame(session_id, codec)

    def open_vp8(self, session_id: str) -> None:
        self._sessions.open_vp8(session_id)

    def close_vp8(self, session_id: str) -> None:
        self._sessions.close_vp8(session_id)

    def estimate_bitrate(self, session_id: str, bits_per_s: int) -> None:
        self._sessions.estimate_bitrate(session_id, bits_per_s)

    def end_session(self, session_id: str, *, discard: bool = False) -> None:
        self._sessions.end(session_id, discard=discard)

    async def stop(self, *, deadline_s: float) -> None:
        """End the sessions, then the groups, then encode. What needs longer than ``deadline_s`` is terminated or killed."""
        self._is_stopping = True
        if self._stopped is None:
            self._stopped = asyncio.create_task(self._stop(asyncio.get_running_loop().time() + deadline_s), name="engine stop")
        # A caller that is cancelled leaves the others, and the children's end, alone.
        await asyncio.shield(self._stopped)

    def kill(self) -> None:
        self._is_stopping = True
        for upkeep in (*self._group_upkeeps, self._encode_upkeep):
            upkeep.kill()
        self._sessions.on_stopped()

    async def _stop(self, deadline_s: float) -> None:
        self._sessions.end_all()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(deadline_s):
                await self._sessions.wait_until_none()
        await asyncio.gather(*(upkeep.stop(deadline_s=deadline_s) for upkeep in self._group_upkeeps))
        await self._encode_upkeep.stop(deadline_s=deadline_s)
        self._encode.close()
        self._sessions.on_stopped()
        for group in self._groups.values():
            group.close()

    def inject(self, faults: Mapping[str, tuple[str, ...]]) -> None:
        """For tests: what each child, by name (``encode-0``, ``labyrinth/1``), is to suffer in its next life."""
        for child, points in faults.items():
            if child == self._encode.name:
                self._encode.next_faults = points
            else:
                self._groups[child.rpartition("/")[0]].next_faults[child] = points

    # -- what the children's keepers say -------------------------------------------------------------------------------

    def _on_packet(self, packet: PacketArrived) -> None:
        self._sessions.on_packet(packet)

    def _on_encode_report(self, report: contract.EncoderOpened | contract.EncoderFailed) -> None:
        self._sessions.on_encode_report(report)

    def _on_leader_report(self, group: ModelGroup, report: contract.Report) -> None:
        self._sessions.on_leader_report(group, report)

    def _on_encode_change(self, failure: ChildFailure | None) -> None:
        if failure is None:
            for group in self._groups.values():
                group.attach(self._encode)
        else:
            self._sessions.on_encode_lost(failure)
            for group in self._groups.values():
                group.detach()
        self._report_models()

    def _on_group_up(self, group: ModelGroup) -> None:
        group.attach(self._encode)

    async def _on_group_down(self, group: ModelGroup, failure: ChildFailure) -> None:
        try:
            await group.drain(self._encode, _DRAIN_TIMEOUT_S)
        finally:
            self._sessions.on_group_lost(group, failure)

    def _on_group_change(self, _group: ModelGroup) -> None:
        self._report_models()

    def _report_models(self) -> None:
        for status in self.models():
            if self._reported.get(status.name) != status:
                self._reported[status.name] = status
                self._emit(ModelChanged(status))

    def _emit(self, event: EngineEvent) -> None:
        if self._listener is not None:
            self._listener(event)
