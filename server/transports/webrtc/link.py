"""One RTCPeerConnection that answers an offer: what aiortc needs to be told, and what it tells."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import dataclass
from typing import Any, ParamSpec

import structlog
from aiortc import (
    RTCBundlePolicy,
    RTCConfiguration,
    RTCDataChannel,
    RTCDtlsTransport,
    RTCIceCandidate,
    RTCPeerConnection,
    RTCRtpSender,
    RTCSessionDescription,
)
from aiortc.rtcicetransport import RTCIceTransport
from aiortc.rtcrtpparameters import RTCRtcpFeedback
from aiortc.rtp import (
    RTCP_PSFB_APP,
    RTCP_PSFB_PLI,
    AnyRtcpPacket,
    RtcpPsfbPacket,
    RtcpRrPacket,
    unpack_remb_fci,
)

from ithaka.server.errors import ApiError, ProtocolViolation
from ithaka.server.transports.base import TransportLost
from ithaka.server.transports.webrtc.dtls_guard import DtlsGuard
from ithaka.server.transports.webrtc.gathering import Gathering, PortsTakenError
from ithaka.server.transports.webrtc.offer import Offer
from ithaka.server.transports.webrtc.playout_delay import send_without_delay, with_playout_delay
from ithaka.server.transports.webrtc.rtcp_guard import RtcpGuard
from ithaka.server.transports.webrtc.sctp_guard import SctpGuard
from ithaka.server.transports.webrtc.track import PacketTrack
from ithaka.workers.contract import Codec

CLOSE_TIMEOUT_S = 5.0
_MIMES: tuple[str, ...] = ("video/h264", "video/vp8", "video/rtx")
"""As they are preferred."""

P = ParamSpec("P")

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Feedback:
    """What the receiver of a track asks for. Called on the event loop."""

    key_frame_wanted: Callable[[Codec], None]
    bitrate_estimated: Callable[[int], None]
    """Bits a second."""


class Link:
    """``track`` is None where the offer gets no video, ``channel`` until the peer has opened it."""

    def __init__(self, gathering: Gathering, feedback: Feedback, track: PacketTrack | None, *, max_message_bytes: int) -> None:
        self.track = track
        self.channel: RTCDataChannel | None = None
        self.codec: Codec = "h264"
        """Of the track, once the offer is answered."""
        self.num_reports = 0
        """Receiver reports that came."""
        self.num_heard = 0
        """Times that the peer has proven to be there."""
        self._gathering = gathering
        self._feedback = feedback
        self._max_message_bytes = max_message_bytes
        self._sender: RTCRtpSender | None = None
        self._rtp_origin: int | None = None
        self._offer: Offer | None = None
        self._changed = asyncio.Event()
        self._is_lost = False
        self._lost_listeners: list[Callable[[], None]] = []
        self._violation: ProtocolViolation | None = None
        self._on_refused: Callable[[ProtocolViolation], None] | None = None
        self._closing: asyncio.Task[None] | None = None
        self._connection = RTCPeerConnection(RTCConfiguration(list(gathering.servers), bundlePolicy=RTCBundlePolicy.MAX_BUNDLE))
        self._connection.on("connectionstatechange", self._state_changed)
        self._connection.on("datachannel", self._channel_opened)

    async def answer(self, offer: Offer) -> str:
        """The answer's SDP, with every candidate.

        Raises ApiError: ``codec_unsupported``, ``sdp_invalid``, ``connections_full``.
        """
        self._offer = offer
        connection = self._connection
        if self.track is not None:
            transceiver = connection.addTransceiver(self.track, direction="sendonly")
            known = RTCRtpSender.getCapabilities("video").codecs
            wanted = [codec for codec in known if codec.mimeType.lower() in _MIMES]
            transceiver.setCodecPreferences(sorted(wanted, key=lambda codec: _MIMES.index(codec.mimeType.lower())))
            self._sender = transceiver.sender
            self._listen(transceiver.sender)
            self._sender.send = self._unless_closing(self._sender.send)  # type: ignore[method-assign]
        try:
            await connection.setRemoteDescription(RTCSessionDescription(offer.sdp, "offer"))
        # The offer was parsed before; what is left is what it asks for.
        except Exception as error:
            if "send parameters" in str(error):
                raise ApiError(
                    "codec_unsupported",
                    "the offer has neither H.264 with packetization-mode=1 nor VP8; this server sends nothing else",
                    field="sdp",
                ) from None
            raise _unanswerable(error) from None
        if connection.sctp is not None:
            connection.sctp.start = self._unless_closing(connection.sctp.start)  # type: ignore[method-assign]
        for transceiver in connection.getTransceivers():
            if transceiver.sender.track is None:
                transceiver.direction = "inactive"
                continue
            if transceiver._codecs[0].mimeType.lower() == "video/vp8":
                self.codec = "vp8"
            for codec in transceiver._codecs:
                if codec.payloadType in offer.fir_payload_types:
                    codec.rtcpFeedback.append(RTCRtcpFeedback(type="ccm", parameter="fir"))
            if offer.playout_delay_id is not None:
                transceiver._headerExtensions = with_playout_delay(transceiver._headerExtensions, offer.playout_delay_id)
                send_without_delay(transceiver.sender)
        self._guard()
        for transport in self._ice_transports():
            self._gathering.lead(transport._connection, self._heard)
        try:
            await connection.setLocalDescription(await connection.createAnswer())
        except PortsTakenError as error:
            raise ApiError("connections_full", str(error)) from None
        except Exception as error:
            raise _unanswerable(error) from None
        return str(connection.localDescription.sdp)

    async def add_candidates(self, candidates: Iterable[RTCIceCandidate]) -> None:
        for candidate in candidates:
            await self._connection.addIceCandidate(candidate)

    async def connected(self) -> None:
        """Returns when media and, where the offer has one, the data channel can flow. Raises TransportLost."""
        assert self._offer is not None
        while not self._is_lost:
            has_channel = self.channel is not None or not self._offer.has_channel
            if self._connection.connectionState == "connected" and has_channel:
                return
            self._changed.clear()
            await self._changed.wait()
        raise TransportLost("the connection failed")

    async def rtp_timestamp(self, pts: int) -> int:
        """The RTP time of a frame of the track, once the first one was sent: where it begins is aiortc's secret until then.

        Raises TransportLost.
        """
        assert self.track is not None and self._sender is not None
        if self._rtp_origin is None:
            first_pts = await self.track.first_sent()
            self._rtp_origin = self._sender._RTCRtpSender__rtp_timestamp - self.track.ticks(first_pts)  # type: ignore[attr-defined]
        return (self._rtp_origin + self.track.ticks(pts)) % 2**32

    def on_lost(self, listener: Callable[[], None]) -> None:
        """Called once, now where it is lost already."""
        if self._is_lost:
            listener()
        else:
            self._lost_listeners.append(listener)

    def on_refused(self, listener: Callable[[ProtocolViolation], None]) -> None:
        """Called once where the peer asks for too much below the protocol, now where it has done so already."""
        self._on_refused = listener
        if self._violation is not None:
            listener(self._violation)

    async def close(self) -> None:
        """Goes on to its end when the caller is cancelled, and holds nobody up for long. Idempotent."""
        if self._closing is None:
            self._closing = asyncio.create_task(self._connection.close())
        _, late = await asyncio.wait({self._closing}, timeout=CLOSE_TIMEOUT_S)
        if late:
            log.error("webrtc.close_hangs")
        self._lose()

    def lose(self) -> None:
        """The peer is gone without a word: whoever sends or waits is told at once. ``close`` is still to come."""
        self._lose()

    def ask(self) -> None:
        """One more check of the connection than ICE makes: a peer that lives answers it, and is heard."""
        for transport in () if self._is_lost else self._ice_transports():
            agent = transport._connection
            for pair in agent._nominated.values():
                request = agent.build_request(pair, nominate=False)
                request.add_message_integrity((agent.remote_password or "").encode())
                pair.protocol.send_stun(request, pair.remote_addr)

    def _guard(self) -> None:
        """Nothing that DTLS brings reaches aiortc unseen."""
        connection = self._connection
        if connection.sctp is not None:
            SctpGuard(
                connection.sctp,
                max_message_bytes=self._max_message_bytes,
                on_refused=self._refuse,
                on_fault=self._fail,
            )
        for dtls in self._dtls_transports():
            DtlsGuard(dtls)
            RtcpGuard(dtls, on_key_frame=self._tell_key_frame, on_fault=self._fail)

    def _refuse(self, violation: ProtocolViolation) -> None:
        self._violation = violation
        if self.channel is None:
            self._lose()
        elif self._on_refused is not None:
            self._on_refused(violation)

    def _fail(self, error: Exception) -> None:
        if not self._is_lost:
            log.warning("webrtc.packet_unhandled", reason=repr(error))
        self._lose()

    def _tell_key_frame(self, ssrcs: frozenset[int]) -> None:
        if self._sender is not None and self._sender._ssrc in ssrcs:
            self._feedback.key_frame_wanted(self.codec)

    def _heard(self) -> None:
        self.num_heard += 1

    def _dtls_transports(self) -> set[RTCDtlsTransport]:
        connection = self._connection
        transports = {transceiver.sender.transport for transceiver in connection.getTransceivers()}
        if connection.sctp is not None:
            transports.add(connection.sctp.transport)
        return transports

    def _ice_transports(self) -> set[RTCIceTransport]:
        return {dtls.transport for dtls in self._dtls_transports()}

    def _unless_closing(self, start: Callable[P, Awaitable[None]]) -> Callable[P, Coroutine[Any, Any, None]]:
        """aiortc may come to start a part that closing has passed by already; nobody would stop it then."""

        async def start_unless_closing(*args: P.args, **kwargs: P.kwargs) -> None:
            if self._closing is None:
                await start(*args, **kwargs)

        return start_unless_closing

    def _listen(self, sender: RTCRtpSender) -> None:
        """aiortc keeps feedback for encoders of its own; packets that come encoded have nobody to hear it."""
        handle = sender._handle_rtcp_packet

        async def handle_and_tell(packet: AnyRtcpPacket) -> None:
            await handle(packet)
            if isinstance(packet, RtcpRrPacket):
                self.num_reports += 1
            elif isinstance(packet, RtcpPsfbPacket) and packet.fmt == RTCP_PSFB_PLI:
                self._feedback.key_frame_wanted(self.codec)
            elif isinstance(packet, RtcpPsfbPacket) and packet.fmt == RTCP_PSFB_APP:
                self._tell_bitrate(packet, sender)

        sender._handle_rtcp_packet = handle_and_tell  # type: ignore[method-assign]

    def _tell_bitrate(self, packet: RtcpPsfbPacket, sender: RTCRtpSender) -> None:
        try:
            bitrate, ssrcs = unpack_remb_fci(packet.fci)
        except ValueError:
            return
        if sender._ssrc in ssrcs:
            self._feedback.bitrate_estimated(bitrate)

    def _state_changed(self) -> None:
        if self._connection.connectionState in ("failed", "closed"):
            self._lose()
        self._changed.set()

    def _channel_opened(self, channel: RTCDataChannel) -> None:
        """The first reliable one is ours; a peer that opens more is not heard there."""
        is_reliable = channel.ordered and channel.maxRetransmits is None and channel.maxPacketLifeTime is None
        if self.channel is not None or not is_reliable:
            channel.close()
            return
        self.channel = channel
        channel.on("close", self._lose)
        self._changed.set()

    def _lose(self) -> None:
        self._is_lost = True
        self._changed.set()
        if self.track is not None:
            self.track.stop()
        listeners, self._lost_listeners = self._lost_listeners, []
        for listener in listeners:
            listener()


def _unanswerable(error: Exception) -> ApiError:
    """The library's words are for the log alone."""
    log.warning("webrtc.offer_unanswerable", reason=repr(error))
    return ApiError("sdp_invalid", "the offer asks for a connection that this server can't make", field="sdp")
