"""The sessions inside the engine: which answers they wait for, and how each of them ends exactly once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import structlog

from ithaka.server.child_process import ChildFailure
from ithaka.server.engine_client import (
    EngineError,
    EngineEvent,
    EngineSessionEnded,
    EngineSessionStarted,
    PacketArrived,
    SessionRequest,
    StepTimed,
)
from ithaka.workers import contract
from ithaka.workers.wire import WireError

_RETRYABLE = frozenset({"session_limit"})
"""Of the codes with which a leader refuses or ends a session."""

_log = structlog.get_logger()


class Leader(Protocol):
    """Who generates a session's frames."""

    name: str

    def send(self, command: contract.Command) -> None:
        """Raises WireError for what is too large, or no text."""
        ...


class Encoders(Protocol):
    """Who encodes them."""

    def open_session(self, request: SessionRequest, description: contract.ModelDescription) -> None: ...
    def request_key_frame(self, session_id: str, codec: contract.Codec) -> None: ...
    def open_vp8(self, session_id: str) -> None: ...
    def close_vp8(self, session_id: str) -> None: ...
    def estimate_bitrate(self, session_id: str, bits_per_s: int) -> None: ...
    def close_session(self, session_id: str) -> None: ...


@dataclass(slots=True)
class EngineSession:
    """``last_seq`` is that of the last packet; ``outcome`` is what the leader said at the end, whose packets may follow."""

    request: SessionRequest
    leader: Leader
    last_seq: int = 0
    through_seq: int = 0
    is_open: bool = False
    """The leader has memory for it."""
    codec: str | None = None
    outcome: contract.SessionEnded | None = None
    is_discarded: bool = False
    """Packets that have not come yet are not waited for."""

    @property
    def is_started(self) -> bool:
        return self.is_open and self.codec is not None


class EngineSessions:
    """Commands go to leader and encode, their answers and packets come here; ``emit`` gets what the core should know."""

    def __init__(self, encoders: Encoders, emit: Callable[[EngineEvent], None]) -> None:
        self._encoders = encoders
        self._emit = emit
        self._sessions: dict[str, EngineSession] = {}
        self._none_left = asyncio.Event()
        self._none_left.set()

    # -- commands ------------------------------------------------------------------------------------------------------

    def start(self, request: SessionRequest, leader: Leader, description: contract.ModelDescription) -> None:
        """Raises EngineError for an id in use and for a request that is too large to send."""
        session_id = request.session_id
        if session_id in self._sessions:
            raise EngineError("session_exists", f"the session {session_id} is running already")
        command = contract.StartSession(session_id, request.seed, request.prompt, request.options)
        try:
            leader.send(command)
        except WireError as error:
            raise EngineError("invalid_session_options", str(error)) from error
        self._sessions[session_id] = EngineSession(request, leader)
        self._none_left.clear()
        self._encoders.open_session(request, description)

    def apply_control(self, control: contract.ApplyControl) -> None:
        """Raises EngineError for a control that is too large to send, or holds what is no text."""
        if session := self._sessions.get(control.session_id):
            try:
                session.leader.send(control)
            except WireError as error:
                raise EngineError("invalid_control", str(error)) from error

    def grant(self, session_id: str, through_seq: int) -> None:
        session = self._sessions.get(session_id)
        if session is None or through_seq <= session.through_seq:
            return
        session.through_seq = through_seq
        # Frames that come before the encoder is open would be lost.
        if session.is_started:
            session.leader.send(contract.GrantFrames(session_id, through_seq))

    def request_key_frame(self, session_id: str, codec: contract.Codec = "h264") -> None:
        if session_id in self._sessions:
            self._encoders.request_key_frame(session_id, codec)

    def open_vp8(self, session_id: str) -> None:
        if session_id in self._sessions:
            self._encoders.open_vp8(session_id)

    def close_vp8(self, session_id: str) -> None:
        if session_id in self._sessions:
            self._encoders.close_vp8(session_id)

    def estimate_bitrate(self, session_id: str, bits_per_s: int) -> None:
        if session_id in self._sessions:
            self._encoders.estimate_bitrate(session_id, bits_per_s)

    def end(self, session_id: str, *, discard: bool = False) -> None:
        session = self._sessions.get(session_id)
        if session is None:
            return
        session.is_discarded |= discard
        if session.outcome is None:
            session.leader.send(contract.EndSession(session_id, discard))
        else:
            self._finish_if_complete(session)

    def end_all(self) -> None:
        for session_id in list(self._sessions):
            self.end(session_id)

    async def wait_until_none(self) -> None:
        await self._none_left.wait()

    # -- what leader and encode say ------------------------------------------------------------------------------------

    def on_leader_report(self, leader: Leader, report: contract.Report) -> None:
        match report:
            case contract.SessionStarted(session_id=session_id):
                if session := self._sessions.get(session_id):
                    session.is_open = True
                    self._announce(session)
            case contract.StepCompleted(session_id=session_id):
                if session_id in self._sessions:
                    self._emit(StepTimed(leader.name, session_id, report.chunk, report.control_id, report.step_ms))
            case contract.SessionEnded(session_id=session_id):
                if session := self._sessions.get(session_id):
                    session.outcome = report
                    self._finish_if_complete(session)

    def on_encode_report(self, report: contract.EncoderOpened | contract.EncoderFailed) -> None:
        session = self._sessions.get(report.session_id)
        if session is None:
            return
        if isinstance(report, contract.EncoderOpened):
            session.codec = report.codec
            self._announce(session)
        else:
            self._abandon(session, report.code, report.message, retryable=False)

    def on_packet(self, packet: PacketArrived) -> None:
        session = self._sessions.get(packet.header.session_id)
        if session is None:
            return
        if packet.header.codec != "h264":
            # It comes beside the stream that is counted.
            self._emit(packet)
            return
        seq = packet.header.seq
        if seq != session.last_seq + 1:
            gap = f"packet {seq} came after {session.last_seq}"
            _log.error("packet.out_of_order", session=session.request.session_id, reason=gap)
            self._abandon(session, "stream_broken", gap, retryable=True)
            return
        session.last_seq = seq
        self._emit(packet)
        self._finish_if_complete(session)

    def on_group_lost(self, leader: Leader, failure: ChildFailure) -> None:
        """Every rank is dead or dying, and what it had published was encoded."""
        for session in [session for session in self._sessions.values() if session.leader is leader]:
            self._finish(session, "worker_lost", f"{failure.child} {failure.message}", retryable=True)

    def on_encode_lost(self, failure: ChildFailure) -> None:
        for session in list(self._sessions.values()):
            self._abandon(session, "encoder_lost", f"{failure.child} {failure.message}", retryable=True)

    def on_stopped(self) -> None:
        """Every child is gone, or about to be."""
        for session in list(self._sessions.values()):
            self._finish(session, "worker_lost", "the engine was stopped", retryable=True)

    # -- ends ----------------------------------------------------------------------------------------------------------

    def _announce(self, session: EngineSession) -> None:
        if not session.is_started:
            return
        assert session.codec is not None
        session_id = session.request.session_id
        self._emit(EngineSessionStarted(session_id, session.codec))
        if session.through_seq:
            session.leader.send(contract.GrantFrames(session_id, session.through_seq))

    def _finish_if_complete(self, session: EngineSession) -> None:
        outcome = session.outcome
        if outcome is not None and (session.is_discarded or session.last_seq >= outcome.last_seq):
            self._finish(session, outcome.code, outcome.message, retryable=outcome.code in _RETRYABLE)

    def _abandon(self, session: EngineSession, code: str, message: str, *, retryable: bool) -> None:
        # The leader goes on with it until it is told.
        if session.outcome is None:
            session.leader.send(contract.EndSession(session.request.session_id, discard=True))
        self._finish(session, code, message, retryable=retryable)

    def _finish(self, session: EngineSession, code: str, message: str, *, retryable: bool) -> None:
        session_id = session.request.session_id
        if self._sessions.pop(session_id, None) is None:
            return
        self._encoders.close_session(session_id)
        if not self._sessions:
            self._none_left.set()
        self._emit(EngineSessionEnded(session_id, session.last_seq, code, message, retryable))
