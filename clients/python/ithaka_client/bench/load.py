"""One run: sessions are started one after another, played together, ended, and accounted for."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass

from ithaka_client.api import Api, SessionInfo
from ithaka_client.bench.access_unit import AccessUnit
from ithaka_client.bench.account import Account, SessionResult
from ithaka_client.bench.carriers import Carrier, OpenCarrier, carrier_of, read_within
from ithaka_client.bench.plan import Arrival, Plan
from ithaka_client.decoder import Decoder
from ithaka_client.errors import ConnectionLostError, IthakaError, ProtocolError, StreamFailedError
from ithaka_client.protocol import (
    Control,
    EncodedFrame,
    EndOfStream,
    Hello,
    Ping,
    ServerError,
    StateChanged,
    build_ack,
    build_control,
    build_end,
    build_fin,
    build_pong,
    build_resume,
    parse_message,
)

QUIET_TIMEOUT_S = 15.0
"""Nothing at all came for so long, though the server sends a ping every 10 s: the session is given up."""
PLACE_INTERVAL_S = 0.25
END_TIMEOUT_S = 15.0


@dataclass(frozen=True, slots=True)
class RunResult:
    plan: Plan
    sessions: tuple[SessionResult, ...]
    delays_ms: tuple[float, ...]
    """Generation to decoded, of every frame of every session, in no order."""


async def run(plan: Plan, open_carrier: OpenCarrier = carrier_of) -> RunResult:
    """``open_carrier`` makes each session's way to the server.

    Raises IthakaError when the server can't be asked; what goes wrong in a session stands in its result.
    """
    api = Api(plan.url, plan.api_key, timeout_s=20.0)
    try:
        model = next((model for model in await api.models() if model.name == plan.model), None)
        if model is None or model.fps is None:
            raise ProtocolError(f"the server has no model {plan.model!r} that is ready")
        chunk_frames = int(model.raw.get("chunk_frames") or 1)
        players = [_Player(plan, api, open_carrier, number, chunk_frames) for number in range(plan.num_sessions)]
        results = await asyncio.gather(*(player.play() for player in players))
    finally:
        await api.aclose()
    delays_ms = tuple(delay for player in players for delay in player.delays_ms)
    return RunResult(plan, tuple(results), delays_ms)


class _Player:
    """One session from create to its verdict."""

    def __init__(self, plan: Plan, api: Api, open_carrier: OpenCarrier, number: int, chunk_frames: int) -> None:
        self._plan = plan
        self._open_carrier = open_carrier
        self._api = api
        self._number = number
        self._chunk_frames = chunk_frames
        self._account: Account | None = None
        self._decoder = Decoder(codec=plan.codec)
        self._declared_frames = 0
        self._has_begun = asyncio.Event()

    @property
    def delays_ms(self) -> list[float]:
        return [] if self._account is None else list(self._account.delays_ms)

    async def play(self) -> SessionResult:
        await asyncio.sleep(self._number * self._plan.start_interval_s)
        begun_ns = time.monotonic_ns()
        try:
            info = await self._api.create_session(
                {"model": self._plan.model, "seed": self._number, "delivery": self._plan.delivery}
            )
        except IthakaError as refusal:
            return _failed(str(refusal))
        fps = info.fps or 1
        self._account = Account(info.id, fps=fps, chunk_frames=self._chunk_frames, begun_ns=begun_ns)
        error = await self._play(info)
        end = await self._look(info)
        declared = self._declared_frames or (end.generated_seq if end is not None else 0)
        dropped = int(end.raw.get("dropped_frames", 0)) if end is not None else 0
        return self._account.result(declared_frames=declared, dropped_frames=dropped, error=error)

    async def _play(self, info: SessionInfo) -> str | None:
        """Returns what went wrong."""
        assert info.token is not None
        carrier: Carrier | None = None
        tasks: list[asyncio.Task[None]] = []
        try:
            await self._await_place(info)
            carrier = self._open_carrier(self._plan, f"/v1/sessions/{info.id}", info.token)
            await carrier.open()
            tasks = [asyncio.create_task(self._control(carrier)), asyncio.create_task(self._end_in_time(carrier))]
            await self._converse(carrier)
        except IthakaError as error:
            return str(error)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            if carrier is not None:
                await carrier.close()
            with contextlib.suppress(IthakaError):
                await self._api.delete_session(info.id, force=True, token=info.token)
        return None

    async def _await_place(self, info: SessionInfo) -> None:
        """Before any carrier: a WebSocket could wait in the queue, WebRTC is refused there. The server bounds the wait."""
        while info.state == "queued":
            await asyncio.sleep(PLACE_INTERVAL_S)
            info = await self._api.session(info.id, token=info.token)
        if info.is_over:
            raise StreamFailedError(info.reason or "session_ended", "The session ended while it waited for its place.")

    async def _converse(self, carrier: Carrier) -> None:
        """Until the session's end. Raises IthakaError."""
        assert self._account is not None
        while (item := await read_within(carrier, QUIET_TIMEOUT_S, awaited=self._awaited())) is not None:
            if isinstance(item, AccessUnit):
                await self._take_frame(item)
                if carrier.acknowledges:
                    through = self._account.decoded_through
                    await carrier.send(build_ack(through, through))
                continue
            match message := parse_message(item):
                case Hello():
                    await carrier.send(build_resume(message.stream, message.next_seq))
                    self._has_begun.set()
                case Ping():
                    await carrier.send(build_pong(message.id))
                case EndOfStream():
                    self._declared_frames = message.count
                    await carrier.send(build_fin(self._account.num_frames, message.last_seq))
                case StateChanged(state="closed"):
                    return
                case StateChanged(state="failed"):
                    raise StreamFailedError(message.reason, "The session failed.")
                case ServerError():
                    raise ProtocolError(message.message, code=message.code)
                case _:
                    pass
        raise ConnectionLostError("connection_lost", f"The connection ended while waiting for {self._awaited()}.")

    def _awaited(self) -> str:
        if self._declared_frames:
            return "the session's end"
        decoded_through = 0 if self._account is None else self._account.decoded_through
        return f"frame {decoded_through + 1}" if self._has_begun.is_set() else "hello"

    async def _take_frame(self, unit: AccessUnit) -> None:
        assert self._account is not None
        received_at_s = time.monotonic()
        if self._plan.decodes:
            frame = EncodedFrame(unit.seq, unit.seq, unit.control_id, 0, 0, unit.is_key, False, unit.data)
            await asyncio.to_thread(self._decoder.decode, frame, received_at_s)
        self._account.frame_arrived(Arrival(unit.seq, unit.control_id, unit.generated_ns, time.monotonic_ns()))

    async def _control(self, carrier: Carrier) -> None:
        """Pointer motion, which every model may ignore and each frame names."""
        if not self._plan.controls_per_s or self._account is None:
            return
        await self._has_begun.wait()
        control_id = 0
        while True:
            await asyncio.sleep(1 / self._plan.controls_per_s)
            control_id += 1
            self._account.control_sent(control_id, time.monotonic_ns())
            await carrier.send(build_control(Control(control_id, (), (), 1.0 if control_id % 2 else -1.0, 0.0, None)))

    async def _end_in_time(self, carrier: Carrier) -> None:
        await self._has_begun.wait()
        await asyncio.sleep(self._plan.duration_s)
        await carrier.send(build_end())

    async def _look(self, info: SessionInfo) -> SessionInfo | None:
        try:
            return await self._api.session(info.id, token=info.token)
        except IthakaError:
            return None


def _failed(error: str) -> SessionResult:
    account = Account("", fps=1, chunk_frames=1, begun_ns=0)
    return account.result(declared_frames=0, dropped_frames=0, error=error)
