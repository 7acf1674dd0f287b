"""The stream of a session over as many connections as it takes: resumed after a loss, finished with a verdict."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Callable
from dataclasses import dataclass

from ithaka_client.acknowledger import Acknowledger
from ithaka_client.api import Api, Role, SessionInfo
from ithaka_client.backoff import delays_s
from ithaka_client.connection import Connection
from ithaka_client.errors import (
    CONTROLLER_CONFLICT,
    TOKEN_INVALID,
    ConnectionLostError,
    DeadlineError,
    IthakaError,
    NotFoundError,
    StreamFailedError,
    StreamRefusedError,
    TransportError,
    UsageError,
)
from ithaka_client.inbox import Inbox, ReceivedFrame
from ithaka_client.position import LivePosition, StreamPosition
from ithaka_client.protocol import EncodedFrame, EndOfStream, Hello, StateChanged, build_fin, build_resume

FINISH_TIMEOUT_S = 10.0
"""From fin to the server's verdict."""
ATTEMPT_TIMEOUT_S = 5.0
KEY_FRAME_INTERVAL_S = 2
"""At most this much is sent again only to be decoded."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a session ended. ``delivered``: the server's verdict; None when it could not be learnt any more."""

    delivered: bool | None
    state: str
    reason: str
    last_seq: int
    decoded_count: int


class Stream:
    """Runs in a task of its own between ``connect`` and ``close``; one consumer takes frames and reports them decoded.

    A viewer acknowledges nothing. ``repeat`` is asked after each resume for messages that make up for what the lost connection
    may have swallowed.
    """

    def __init__(
        self,
        api: Api,
        info: SessionInfo,
        role: Role,
        *,
        connect_timeout_s: float,
        resume_timeout_s: float,
        repeat: Callable[[], list[str]],
    ) -> None:
        is_gapless = role == "controller" and info.raw.get("delivery") != "live"
        self.position = StreamPosition() if is_gapless else LivePosition()
        self.hello: Hello | None = None
        self.state = info.state
        self.outcome: Outcome | None = None
        self.num_connections = 0
        self._api = api
        self._role: Role = role
        self._session_id = info.id
        self._url = api.stream_url(info.stream_path)
        self._token = info.token
        self._connect_timeout_s = connect_timeout_s
        self._resume_timeout_s = resume_timeout_s
        self._repeat = repeat
        self._acknowledger = Acknowledger(self.position)
        self._inbox = Inbox()
        self._connection: Connection | None = None
        self._connected = asyncio.Event()
        self._deadline = asyncio.timeout(None)
        self._final_state: StateChanged | None = None
        self._task: asyncio.Task[None] | None = None

    # -- for the consumer --------------------------------------------------------------------------------------------------

    async def connect(self) -> Hello:
        """Wait until a connection is there, the first or the next. Raises what ended the stream, or DeadlineError."""
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name=f"ithaka-stream-{self._session_id}")
        connected = asyncio.create_task(self._connected.wait())
        try:
            await asyncio.wait({connected, self._task}, timeout=self._connect_timeout_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            connected.cancel()
        if self._task.done():
            self._task.result()
            raise UsageError("The session has ended.")
        if self.hello is None or not self._connected.is_set():
            raise DeadlineError("connect_timeout", f"Not connected within {self._connect_timeout_s:g} s.", retryable=True)
        return self.hello

    async def take(self) -> ReceivedFrame | None:
        """The next frame to decode; None after the last."""
        if self._task is None:
            await self.connect()
        return await self._inbox.take()

    async def confirm(self, seq: int) -> bool:
        """Frame ``seq`` was decoded. Returns whether it is to be shown."""
        is_shown = self.position.decode(seq)
        self._acknowledger.note_decoded()
        if self.position.is_complete:
            await self._finish()
        return is_shown

    async def send(self, message: str) -> None:
        """A message that a lost connection swallows is made up for after the next resume."""
        if self._connection is not None:
            with contextlib.suppress(ConnectionLostError):
                await self._connection.send(message)

    async def result(self) -> None:
        """Wait for the verdict. Raises what ended the stream, when it was no regular end."""
        if self._task is not None:
            await self._task

    async def close(self) -> None:
        """Leave at once. Idempotent, bounded."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            if not self._task.cancelled():
                self._task.exception()

    # -- connection after connection -----------------------------------------------------------------------------------------

    async def _run(self) -> None:
        try:
            connection: Connection | None = await Connection.open(self._url, self._token, timeout_s=self._connect_timeout_s)
            while connection is not None:
                lost = await self._serve(connection)
                connection = None if lost is None else await self._reconnect(lost)
            await self._conclude()
        finally:
            await self._inbox.close()

    async def _serve(self, connection: Connection) -> ConnectionLostError | None:
        """Speak over one connection until the server closes it (None) or it is lost (why)."""
        acknowledging: asyncio.Task[None] | None = None
        self._deadline = asyncio.timeout(None)
        try:
            async with self._deadline:
                await self._begin(connection)
                if self._role == "controller":
                    acknowledging = asyncio.create_task(self._acknowledger.run(connection))
                async for message in connection.messages():
                    await self._handle(message)
            return None
        except TimeoutError:
            return None
        except IthakaError as error:
            if self._final_state is not None:
                return None
            if isinstance(error, ConnectionLostError):
                return error
            raise
        finally:
            self._connection = None
            self._connected.clear()
            if acknowledging is not None:
                acknowledging.cancel()
                await asyncio.wait([acknowledging])
            await connection.close()

    async def _begin(self, connection: Connection) -> None:
        hello = connection.hello
        if hello.role != self._role:
            raise UsageError(f"The token is a {hello.role}'s, and was used as a {self._role}'s.")
        next_seq = self.position.begin(hello)
        await self._inbox.restart(hello.window + 2 * KEY_FRAME_INTERVAL_S * hello.fps)
        await connection.send(build_resume(hello.stream, next_seq))
        if self.hello is not None:
            for message in self._repeat():
                await connection.send(message)
        self.hello = hello
        self.num_connections += 1
        self._connection = connection
        self._connected.set()

    async def _handle(self, message: object) -> None:
        match message:
            case EncodedFrame():
                self.position.receive(message)
                self._acknowledger.note_received()
                await self._inbox.put(ReceivedFrame(self.num_connections, message, time.monotonic()))
            case EndOfStream():
                self.position.finish(message)
                if self.position.is_complete:
                    await self._finish()
            case StateChanged():
                self.state = message.state
                if message.state in ("closed", "failed"):
                    self._final_state = message
            case _:
                pass

    async def _finish(self) -> None:
        """Everything was decoded: say so once on this connection, and expect the verdict within a deadline."""
        end = self.position.end
        assert end is not None
        if self._role == "viewer":
            return
        if self._connection is not None and self._deadline.when() is None:
            self._deadline.reschedule(asyncio.get_running_loop().time() + FINISH_TIMEOUT_S)
            await self.send(self._acknowledger.take())
            await self.send(build_fin(self.position.decoded_count, end.last_seq))

    async def _reconnect(self, lost: ConnectionLostError) -> Connection | None:
        """The next connection, or None when the session ended meanwhile. Raises ConnectionLostError, StreamError."""
        clock = asyncio.get_running_loop().time
        deadline_s = clock() + self._resume_timeout_s
        for delay_s in delays_s(random.random):
            remaining_s = deadline_s - clock()
            if remaining_s <= 0:
                break
            await asyncio.sleep(min(delay_s, remaining_s))
            try:
                return await Connection.open(self._url, self._token, timeout_s=ATTEMPT_TIMEOUT_S)
            except TransportError:
                continue
            except StreamRefusedError as refused:
                # The server may not have noticed yet that the lost connection is gone.
                if refused.close_code == CONTROLLER_CONFLICT or await self._renew_token(refused):
                    continue
                if await self._is_over():
                    return None
                raise
        raise ConnectionLostError(
            "connection_lost", f"The stream was cut and could not be resumed within {self._resume_timeout_s:g} s."
        ) from lost

    async def _renew_token(self, refused: StreamRefusedError) -> bool:
        if refused.close_code != TOKEN_INVALID or not self._api.has_key:
            return False
        self._token = await self._api.mint_token(self._session_id, self._role)
        return True

    async def _is_over(self) -> bool:
        try:
            return (await self._api.session(self._session_id, token=self._token)).is_over
        except NotFoundError:
            return self.position.is_complete

    async def _conclude(self) -> None:
        """Settle the outcome. Raises StreamFailedError unless the stream ended regularly and all of it was decoded."""
        final = self._final_state
        if final is None or final.delivered is None:
            with contextlib.suppress(IthakaError):
                info = await self._api.session(self._session_id, token=self._token)
                final = StateChanged(info.state, info.reason, info.delivered)
        final = final or StateChanged("closed", "unknown", None)
        position, end = self.position, self.position.end
        last_seq = position.received_through if end is None else end.last_seq
        self.state = final.state
        self.outcome = Outcome(final.delivered, final.state, final.reason, last_seq, position.decoded_count)
        if final.state == "failed" or not position.is_complete:
            raise StreamFailedError(
                (final.reason if end is None else end.reason) or "session_closed",
                f"The session ended after frame {position.decoded_through}.",
                retryable=end is not None and end.retryable,
                last_seq=position.decoded_through,
            )
