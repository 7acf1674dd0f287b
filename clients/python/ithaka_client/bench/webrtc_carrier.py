"""A session over WebRTC: messages on a data channel, frames there or on a track. Frames are taken before any decoder."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

from aiortc import RTCConfiguration, RTCPeerConnection, RTCRtpReceiver, RTCSessionDescription
from aiortc.rtcicetransport import RTCIceTransport

from ithaka_client.api import Api
from ithaka_client.bench.access_unit import AccessUnit, is_key_frame, is_vp8_key_frame, numbered_h264
from ithaka_client.bench.assembler import Assembler
from ithaka_client.bench.numbering import Numbering
from ithaka_client.bench.plan import CodecName
from ithaka_client.errors import ConnectFailedError, DeadlineError, ProtocolError
from ithaka_client.protocol import HEADER, Numbered, parse_frame, parse_message

OPEN_TIMEOUT_S = 20.0
QUEUED_ITEMS = 512
_MIMES: dict[CodecName, str] = {"h264": "video/H264", "vp8": "video/VP8"}
_LOOPBACK = ("127.0.0.1", "localhost")


class WebRtcCarrier:
    """Full policy: what a load client has no time for is left out, and so counts as lost."""

    def __init__(
        self,
        url: str,
        session_path: str,
        token: str,
        *,
        codec: CodecName | None,
        reroute: Callable[[str], Awaitable[str]] | None = None,
    ) -> None:
        """``codec`` of the track; None where frames come on the data channel. ``reroute`` may lead the server's answer (SDP)
        another way, for networks that a test makes.
        """
        self._reroute = reroute
        self.acknowledges = codec is None
        self._numbering = Numbering() if codec == "vp8" else None
        self._url = url
        self._session_path = session_path
        self._token = token
        self._connection = RTCPeerConnection(RTCConfiguration([]))
        self._items: asyncio.Queue[str | AccessUnit | ProtocolError | None] = asyncio.Queue(maxsize=QUEUED_ITEMS)
        self._partial = b""
        self._opened = asyncio.Event()
        self._channel = self._connection.createDataChannel("ithaka")
        self._channel.on("open", self._opened.set)
        self._channel.on("message", self._arrived)
        self._channel.on("close", lambda: self._put(None))
        self._connection.on("connectionstatechange", self._state_changed)
        if codec is not None:
            self._take_track(codec)

    async def open(self) -> None:
        connection = self._connection
        if urlsplit(self._url).hostname in _LOOPBACK:
            transports = [transceiver.sender.transport for transceiver in connection.getTransceivers()]
            assert connection.sctp is not None
            for transport in (*transports, connection.sctp.transport):
                _offer_loopback(transport.transport)
        await connection.setLocalDescription(await connection.createOffer())
        api = Api(self._url, None, timeout_s=OPEN_TIMEOUT_S)
        try:
            sdp = await api.offer_webrtc(self._session_path, connection.localDescription.sdp, self._token)
        finally:
            await api.aclose()
        if self._reroute is not None:
            sdp = await self._reroute(sdp)
        await connection.setRemoteDescription(RTCSessionDescription(sdp, "answer"))
        try:
            async with asyncio.timeout(OPEN_TIMEOUT_S):
                await self._opened.wait()
        except TimeoutError:
            words = f"The data channel was not open {OPEN_TIMEOUT_S:g} s after the answer: no datagram came through, perhaps."
            raise DeadlineError("connect_timeout", words, retryable=True) from None
        if self._channel.readyState != "open":
            raise ConnectFailedError("webrtc_failed", f"WebRTC did not come up: it is {connection.connectionState}.")

    async def send(self, message: str) -> None:
        if self._channel.readyState == "open":
            self._channel.send(message)

    async def receive(self) -> str | AccessUnit | None:
        item = await self._items.get()
        if isinstance(item, ProtocolError):
            raise item
        return item

    async def close(self) -> None:
        await self._connection.close()

    def _take_track(self, codec: CodecName) -> None:
        transceiver = self._connection.addTransceiver("video", direction="recvonly")
        capabilities = RTCRtpReceiver.getCapabilities("video")
        assert capabilities is not None
        transceiver.setCodecPreferences([one for one in capabilities.codecs if one.mimeType in (_MIMES[codec], "video/rtx")])
        # aiortc's own buffer gives a frame away only when the next one has begun, which is one frame too late.
        assembler = Assembler(self._picture_came, is_key_frame if codec == "h264" else is_vp8_key_frame)
        transceiver.receiver._RTCRtpReceiver__jitter_buffer = assembler  # type: ignore[attr-defined]

    def _picture_came(self, rtp_timestamp: int, data: bytes) -> None:
        if self._numbering is None:
            self._put_h264(data)
        elif (unit := self._numbering.picture_came(rtp_timestamp, data, is_key=is_vp8_key_frame(data))) is not None:
            self._put(unit)

    def _arrived(self, message: str | bytes) -> None:
        if isinstance(message, str):
            self._message_came(message)
            return
        self._partial += message
        if len(self._partial) >= HEADER.size + int.from_bytes(self._partial[4:8], "big"):
            whole, self._partial = self._partial, b""
            self._put_h264(parse_frame(whole).payload)

    def _message_came(self, text: str) -> None:
        number = parse_message(text) if self._numbering is not None else None
        if self._numbering is None or not isinstance(number, Numbered):
            self._put(text)
        elif (unit := self._numbering.number_came(number)) is not None:
            self._put(unit)

    def _state_changed(self) -> None:
        if self._connection.connectionState in ("failed", "closed"):
            self._opened.set()
            self._put(None)

    def _put_h264(self, data: bytes) -> None:
        try:
            self._put(numbered_h264(data))
        except ProtocolError as error:
            self._put(error)

    def _put(self, item: str | AccessUnit | ProtocolError | None) -> None:
        if not self._items.full():
            self._items.put_nowait(item)


def _offer_loopback(transport: RTCIceTransport) -> None:
    """aioice has no setting for it."""
    agent = transport._connection
    gather = agent.get_component_candidates

    async def gather_loopback(component: int, addresses: list[str]) -> object:
        return await gather(component, ["127.0.0.1"])

    agent.get_component_candidates = gather_loopback  # type: ignore[method-assign,assignment]
