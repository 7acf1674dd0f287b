"""One connection of a session: a reader, a sender that drains a cursor, and an end that can't be held up.

Nothing is queued here: the newest state, one ping and an index into retention are all that waits for the carrier.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from ithaka.server.errors import ERROR_CODES, ApiError, ProtocolViolation
from ithaka.server.metrics import Metrics
from ithaka.server.session.cursor import Cursor, LiveCursor, ViewerCursor, Vp8Cursor
from ithaka.server.session.messages import (
    Ack,
    ClientMessage,
    Control,
    End,
    Eos,
    ErrorRaised,
    Fin,
    Hello,
    Pause,
    Ping,
    Play,
    Pong,
    Resume,
    Role,
    ServerMessage,
    StateChanged,
)
from ithaka.server.session.rate import RateBound
from ithaka.server.session.session import Session
from ithaka.server.session.timers import Timer, Timers
from ithaka.server.transports.base import FrameToSend, Transport, TransportLost
from ithaka.workers.contract import Codec

CLOSE_GRACE_S = 2.0
"""How long a last message may wait for a carrier that takes nothing."""
PING_INTERVAL_S = 10.0
GIVE_WAY_S = 2.5
"""So long nothing was heard of a controller whose place another one wants: it is gone, or may as well be."""

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class PeerSettings:
    """``answer_timeout_s``: a ping unanswered this long means that the client is lost."""

    max_messages_per_s: int
    answer_timeout_s: float


class Peer:
    def __init__(
        self,
        session: Session,
        transport: Transport,
        role: Role,
        *,
        settings: PeerSettings,
        timers: Timers,
        metrics: Metrics,
        acknowledges: bool = True,
        codec: Codec = "h264",
        heard_at_s: Callable[[], float] | None = None,
    ) -> None:
        """``acknowledges``: the other side says what it decoded; over a track it can't. ``codec``: what it can decode.
        ``heard_at_s``: when its machine was heard last, where the carrier knows and sees to it that one that lives is heard.
        """
        self._codec: Codec = codec
        self.role: Role = role
        self._acknowledges = acknowledges
        self._session = session
        self._transport = transport
        self._settings = settings
        self._timers = timers
        self._metrics = metrics
        self._rate = RateBound(settings.max_messages_per_s, timers.now_s())
        self._wake = asyncio.Event()
        self._ending = asyncio.Event()
        self._close_code: int | None = None
        self._violation: ProtocolViolation | None = None
        self._last_words: list[ServerMessage] = []
        self._may_greet = self._is_greeted = self._has_resumed = self._has_sent_eos = False
        self._state_is_due = False
        self._cursor: Cursor | None = None
        self._ping_id = 0
        self._ping_is_due = False
        self._unanswered_since_s: float | None = None
        self._ping_timer: Timer | None = None
        self._heard_at_s = heard_at_s
        self._doubted_at_s: float | None = None

    # -- told by the session -------------------------------------------------------------------------------------------

    def greet(self) -> None:
        """The hello can be sent now."""
        self._may_greet = True
        if self.role == "viewer":
            self._cursor = self._session.viewer_cursor() if self._codec == "h264" else self._session.use_vp8()
        self.wake()

    def announce(self) -> None:
        """The state changed."""
        self._state_is_due = True
        self.wake()

    def wake(self) -> None:
        """There may be something to send."""
        self._wake.set()

    def gives_way(self) -> bool:
        """Whether nothing was heard from here for ``GIVE_WAY_S``. Where only messages tell, it is asked for one, and whoever
        wants the place has to come again.
        """
        now_s = self._timers.now_s()
        if self._heard_at_s is not None:
            return now_s - self._heard_at_s() >= GIVE_WAY_S
        if self._doubted_at_s is None:
            self._doubted_at_s = now_s
            self._ask()
        return now_s - self._doubted_at_s >= GIVE_WAY_S

    def drop(self, violation: ProtocolViolation) -> None:
        """End the connection, not the session."""
        self._violation = violation
        self._ending.set()

    def finish(self, last_state: StateChanged, error: ErrorRaised, close_code: int, *, is_fault: bool) -> None:
        """The session is over. A client that never saw hello, or is to blame, gets the reason as an error."""
        self._last_words = [last_state] if self._is_greeted else []
        if is_fault or not self._is_greeted:
            self._last_words.append(error)
        self._close_code = close_code
        self._ending.set()
        self.wake()

    # -- the connection's life -----------------------------------------------------------------------------------------

    async def run(self) -> None:
        """From attaching to closing. Returns when the connection is closed; cancelling it leaves the session detached."""
        try:
            self._session.attach(self)
        except ProtocolViolation as violation:
            await self._close_with_error(violation)
            return
        self._metrics.connections.labels(self.role).inc()
        self._schedule_ping()
        try:
            await self._converse()
        finally:
            if self._ping_timer is not None:
                self._ping_timer.cancel()
            self._session.lose(self)
            if isinstance(self._cursor, Vp8Cursor):
                self._session.leave_vp8()
            self._metrics.connections.labels(self.role).dec()
            if isinstance(self._cursor, ViewerCursor | LiveCursor | Vp8Cursor):
                self._metrics.skipped.inc(self._cursor.skipped)
        if self._violation is not None:
            await self._close_with_error(self._violation)
        elif self._close_code is not None:
            await self._close(self._close_code)

    async def _converse(self) -> None:
        reader = asyncio.create_task(self._receive_all())
        sender = asyncio.create_task(self._send_all())
        ending = asyncio.create_task(self._ending.wait())
        try:
            await asyncio.wait({reader, sender, ending}, return_when=asyncio.FIRST_COMPLETED)
            if self._close_code is not None and not reader.done():
                reader.cancel()
                await asyncio.wait({sender}, timeout=CLOSE_GRACE_S)
        finally:
            for task in (reader, sender, ending):
                task.cancel()
            results = await asyncio.gather(reader, sender, ending, return_exceptions=True)
        for result in results:
            if isinstance(result, ProtocolViolation):
                self._violation = self._violation or result
            elif isinstance(result, Exception) and not isinstance(result, TransportLost):
                log.error("connection.failed", session=self._session.session_id, exc_info=result)
                self._violation = ProtocolViolation("internal", "a fault of the server; it is in its log")

    async def _close_with_error(self, violation: ProtocolViolation) -> None:
        self._metrics.violations.labels(violation.code).inc()
        retryable = ERROR_CODES[violation.code].retryable
        error = ErrorRaised(code=violation.code, message=str(violation), retryable=retryable)
        try:
            async with asyncio.timeout(CLOSE_GRACE_S):
                await self._transport.send(error)
        except (TransportLost, TimeoutError):
            return
        await self._close(violation.close_code)

    async def _close(self, code: int) -> None:
        try:
            async with asyncio.timeout(CLOSE_GRACE_S):
                await self._transport.close(code)
        except TimeoutError:
            return

    # -- reading -------------------------------------------------------------------------------------------------------

    async def _receive_all(self) -> None:
        while True:
            message = await self._transport.receive()
            self._doubted_at_s = None
            if not self._rate.take(self._timers.now_s()):
                raise ProtocolViolation("rate_exceeded", f"more than {self._settings.max_messages_per_s} messages in a second")
            if self._close_code is not None:
                return
            if isinstance(message, Pong):
                self._take_pong(message)
            elif self.role == "viewer":
                self._take_from_viewer(message)
            else:
                self._take_from_controller(message)

    def _take_from_viewer(self, message: ClientMessage) -> None:
        if not isinstance(message, Resume):
            raise ProtocolViolation("role_not_allowed", f"a viewer sends no {message.type}")

    def _take_from_controller(self, message: ClientMessage) -> None:
        if isinstance(message, Resume) == self._has_resumed or not self._is_greeted:
            raise ProtocolViolation("resume_missing", f"a connection begins with one resume after hello; {message.type} came")
        session = self._session
        match message:
            case Resume():
                # Asked for before the first frame is, so that it is there in VP8 too.
                self._cursor = session.use_vp8() if self._codec == "vp8" else None
                cursor = session.resume(message.stream, message.next_seq, acknowledges=self._acknowledges)
                self._cursor = self._cursor or cursor
                self._has_resumed = True
                self.wake()
            case Ack():
                session.acknowledge(message.received_through, message.decoded_through)
            case Control():
                self._take_control(message)
            case Pause():
                session.pause()
            case Play():
                session.play()
            case End():
                session.end("ended")
            case Fin():
                session.finish(message.decoded_count, message.last_seq)
            case Pong():
                pass

    def _take_control(self, message: Control) -> None:
        """One that comes while the session drains was on its way, and is too late."""
        if self._session.is_draining:
            return
        try:
            self._session.control(message, control_id=message.control_id)
        except ApiError as error:
            raise ProtocolViolation(error.code, str(error)) from None

    # -- sending -------------------------------------------------------------------------------------------------------

    async def _send_all(self) -> None:
        while True:
            self._wake.clear()
            while (item := self._next()) is not None:
                if isinstance(item, FrameToSend):
                    await self._transport.send_frame(item)
                else:
                    await self._transport.send(item)
            if self._close_code is not None:
                return
            await self._wake.wait()

    def _next(self) -> ServerMessage | FrameToSend | None:
        """What goes out next; taking it is saying that it was sent."""
        if self._close_code is not None:
            return self._last_words.pop(0) if self._last_words else None
        if self._violation is not None:
            return None
        if not self._is_greeted:
            return self._next_hello()
        if self._state_is_due:
            self._state_is_due = False
            return self._session.state_message()
        if self._ping_is_due:
            self._ping_is_due = False
            return Ping(id=self._ping_id)
        return self._next_frame() or self._next_eos()

    def _next_hello(self) -> Hello | None:
        if not self._may_greet:
            return None
        self._is_greeted = True
        self._state_is_due = True
        return self._session.hello(self.role)

    def _next_frame(self) -> FrameToSend | None:
        flow = self._session.flow
        taken = self._cursor.take(flow) if self._cursor is not None and flow is not None else None
        if taken is None:
            return None
        frame, decode_only = taken
        if self.role == "controller" and self._acknowledges:
            self._session.expect_ack()
        self._metrics.sent.labels(self.role).inc()
        self._metrics.sent_bytes.labels(self.role).inc(len(frame.payload))
        age_ms = max(0, self._timers.now_ns() - frame.header.generated_ns) // 1_000_000
        return FrameToSend(frame.header, frame.payload, decode_only, age_ms)

    def _next_eos(self) -> Eos | None:
        """After the last frame that this connection gets."""
        if self._has_sent_eos or self._cursor is None:
            return None
        eos = self._session.eos()
        if eos is not None:
            self._has_sent_eos = True
            if self.role == "controller":
                self._session.eos_sent()
        return eos

    # -- liveness ------------------------------------------------------------------------------------------------------

    def _schedule_ping(self) -> None:
        self._ping_timer = self._timers.call_at(self._timers.now_s() + PING_INTERVAL_S, self._ping)

    def _ping(self) -> None:
        if self._unanswered_since_s is None:
            self._ask()
        elif self._timers.now_s() - self._unanswered_since_s >= self._settings.answer_timeout_s:
            self.drop(ProtocolViolation("pong_timeout", f"no pong for {self._settings.answer_timeout_s:g} s"))
        self._schedule_ping()

    def _ask(self) -> None:
        """By a ping, unless there is one that waits for its answer."""
        if self._unanswered_since_s is None:
            self._unanswered_since_s = self._timers.now_s()
            self._ping_id += 1
            self._ping_is_due = True
            self.wake()

    def _take_pong(self, message: Pong) -> None:
        """One that answers another ping than the last is late, and says nothing."""
        if message.id == self._ping_id and self._unanswered_since_s is not None:
            self._metrics.round_trip_s.observe(self._timers.now_s() - self._unanswered_since_s)
            self._unanswered_since_s = None
