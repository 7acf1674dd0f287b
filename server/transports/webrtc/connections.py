"""All WebRTC connections: answers offers, waits for peers to come up, lets a ``Peer`` do the talking, sees them out."""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass

import structlog

from ithaka.server.auth import Principal
from ithaka.server.errors import ApiError
from ithaka.server.metrics import Metrics
from ithaka.server.session.messages import Role
from ithaka.server.session.peer import CLOSE_GRACE_S, Peer, PeerSettings
from ithaka.server.session.session import Session
from ithaka.server.session.timers import Timers
from ithaka.server.transports.base import TransportLost
from ithaka.server.transports.webrtc.data_channel import MESSAGE_BYTES, DataChannelMessages
from ithaka.server.transports.webrtc.gathering import Gathering
from ithaka.server.transports.webrtc.link import Feedback, Link
from ithaka.server.transports.webrtc.mute_client import MuteClient
from ithaka.server.transports.webrtc.offer import Offer
from ithaka.server.transports.webrtc.silence import SilenceWatch
from ithaka.server.transports.webrtc.track import PacketTrack
from ithaka.server.transports.webrtc.transport import Messages, WebRtcTransport
from ithaka.server.transports.webrtc.trickle import Trickle

VIEWERS_LEAVE = 4
"""One place of so many: whoever only looks can't keep a controller out."""

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """``connect_timeout_s``: from the answer until media can flow."""

    max_connections: int
    connect_timeout_s: float
    max_message_bytes: int

    @property
    def max_viewers(self) -> int:
        return self.max_connections - self.max_connections // VIEWERS_LEAVE


@dataclass(frozen=True, slots=True)
class Answered:
    connection_id: str
    sdp: str


@dataclass(slots=True)
class _Connection:
    session: Session
    role: Role
    made_by: Principal
    offer: Offer
    link: Link
    trickle: Trickle
    is_up: bool = False
    task: asyncio.Task[None] | None = None


class WebRtcConnections:
    """A peer attaches to its session only when its connection is up, so one that never answers holds nothing but a socket."""

    def __init__(
        self, gathering: Gathering, limits: ConnectionLimits, *, peers: PeerSettings, timers: Timers, metrics: Metrics
    ) -> None:
        self._gathering = gathering
        self._limits = limits
        self._peers = peers
        self._timers = timers
        self._metrics = metrics
        self._connections: dict[str, _Connection] = {}

    @property
    def num_open(self) -> int:
        return len(self._connections)

    async def answer(self, session: Session, role: Role, made_by: Principal, offer: Offer) -> Answered:
        """Raises ApiError: ``sdp_invalid``, ``codec_unsupported``, ``track_unsupported``, ``connections_full``,
        ``session_ended``, ``session_not_started``.
        """
        self._require_place(role)
        fps = _fps_to_play(session)
        link = Link(
            self._gathering,
            _feedback(session, role),
            PacketTrack(fps) if _takes_track(session, role, offer) else None,
            max_message_bytes=self._limits.max_message_bytes,
        )
        connection_id = secrets.token_hex(12)
        # Counted before the first wait, so that many offers at once don't pass the bound.
        self._connections[connection_id] = connection = _Connection(
            session, role, made_by, offer, link, Trickle(offer, self._timers.now_s)
        )
        try:
            sdp = await link.answer(offer)
        except BaseException:
            del self._connections[connection_id]
            await link.close()
            raise
        connection.task = asyncio.create_task(self._live(connection_id, connection), name=f"webrtc {connection_id}")
        return Answered(connection_id, sdp)

    async def add_candidates(self, session: Session, asker: Principal, connection_id: str, fragment: str) -> None:
        """Raises ApiError: ``connection_unknown``, ``role_not_allowed``, and what a ``Trickle`` refuses."""
        connection = self._find(session, asker, connection_id)
        await connection.link.add_candidates(connection.trickle.read(fragment))

    async def end(self, session: Session, asker: Principal, connection_id: str) -> None:
        """Close the connection; the session goes on as after a lost one.

        Raises ApiError ``connection_unknown``, ``role_not_allowed``.
        """
        await self._find(session, asker, connection_id).link.close()

    async def close_all(self) -> None:
        """For the server's end: connections whose session is over say their last words first, within their bound."""
        tasks = {connection.task: connection for connection in self._connections.values() if connection.task is not None}
        leaving = {task for task, connection in tasks.items() if connection.is_up and connection.session.is_over}
        for task in tasks.keys() - leaving:
            task.cancel()
        if leaving:
            _, late = await asyncio.wait(leaving, timeout=2 * CLOSE_GRACE_S)
            for task in late:
                task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _require_place(self, role: Role) -> None:
        """Raises ApiError ``connections_full``."""
        num_viewers = sum(connection.role == "viewer" for connection in self._connections.values())
        if len(self._connections) >= self._limits.max_connections:
            raise ApiError("connections_full", f"{self._limits.max_connections} WebRTC connections are open, and no more fit")
        if role == "viewer" and num_viewers >= self._limits.max_viewers:
            raise ApiError("connections_full", f"{num_viewers} viewers are connected; what places are left are controllers'")

    def _find(self, session: Session, asker: Principal, connection_id: str) -> _Connection:
        connection = self._connections.get(connection_id)
        if connection is None or connection.session is not session:
            raise ApiError("connection_unknown", f"the session has no connection {connection_id!r}")
        if asker.role != "controller" and asker != connection.made_by:
            raise ApiError("role_not_allowed", "a viewer's token is good for the connections that it made")
        return connection

    async def _live(self, connection_id: str, connection: _Connection) -> None:
        link = connection.link
        try:
            async with asyncio.timeout(self._limits.connect_timeout_s):
                await link.connected()
            connection.is_up = True
            self._metrics.webrtc_connects.labels("connected").inc()
            await self._converse(connection)
        except TimeoutError:
            self._metrics.webrtc_connects.labels("timeout").inc()
        except TransportLost:
            self._metrics.webrtc_connects.labels("failed").inc()
        except Exception:
            log.exception("webrtc.failed", session=connection.session.session_id)
        finally:
            del self._connections[connection_id]
            await link.close()

    async def _converse(self, connection: _Connection) -> None:
        link = connection.link
        watch = SilenceWatch(
            self._timers,
            num_heard=lambda: link.num_heard,
            ask=link.ask,
            on_silence=lambda: self._fell_silent(connection),
        )
        try:
            await self._peer(connection, watch).run()
        finally:
            watch.cancel()

    def _fell_silent(self, connection: _Connection) -> None:
        log.info("webrtc.silent", session=connection.session.session_id, role=connection.role)
        connection.link.lose()

    def _peer(self, connection: _Connection, watch: SilenceWatch) -> Peer:
        link, role = connection.link, connection.role
        messages: Messages
        if link.channel is None:
            messages = MuteClient(role, lambda: link.num_reports)
        else:
            messages = channel = DataChannelMessages(
                link.channel,
                self._timers,
                max_messages_per_s=self._peers.max_messages_per_s,
                piece_bytes=min(MESSAGE_BYTES, connection.offer.max_message_bytes or MESSAGE_BYTES),
            )
            link.on_refused(channel.refuse)
        return Peer(
            connection.session,
            WebRtcTransport(link, messages),
            role,
            settings=self._peers,
            timers=self._timers,
            metrics=self._metrics,
            acknowledges=link.track is None,
            codec=link.codec,
            heard_at_s=lambda: watch.heard_at_s,
        )


def _fps_to_play(session: Session) -> int:
    if session.is_over:
        raise ApiError("session_ended", f"the session is over: {session.data.reason}")
    if session.description is None:
        raise ApiError("session_not_started", "the session waits for a place; connect when it is admitted")
    return session.description.fps


def _takes_track(session: Session, role: Role, offer: Offer) -> bool:
    """Raises ApiError ``track_unsupported`` where only a track could carry the frames, and may not."""
    loses_nothing = role == "controller" and session.spec.delivery == "lossless"
    if offer.has_video and not loses_nothing:
        if session.spec.pixels == "exact":
            raise ApiError("track_unsupported", "a track can't carry exact pixels; use the WebSocket or a data channel")
        return True
    if not offer.has_channel:
        raise ApiError(
            "track_unsupported", "a track may lose frames: create the session with delivery live, or offer a data channel"
        )
    return False


def _feedback(session: Session, role: Role) -> Feedback:
    def estimated(bits_per_s: int) -> None:
        if role == "controller":
            session.bitrate_estimated(bits_per_s)

    return Feedback(session.key_frame_wanted, estimated)
