"""A session over WebRTC: messages on a data channel, frames there or on a track. Frames are taken before any decoder."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

import httpx
from aiortc import RTCConfiguration, RTCPeerConnection, RTCRtpReceiver, RTCSessionDescription
from aiortc.rtcicetransport import RTCIceTransport

from ithaka_client.bench.assembler import Assembler
from ithaka_client.protocol import HEADER, parse_frame

OPEN_TIMEOUT_S = 20.0
QUEUED_ITEMS = 512
_LOOPBACK = ("127.0.0.1", "localhost")


class WebRtcCarrier:
    """Full policy: what a load client has no time for is left out, and so counts as lost."""

    def __init__(
        self,
        url: str,
        session_path: str,
        token: str,
        *,
        has_track: bool,
        reroute: Callable[[str], Awaitable[str]] | None = None,
    ) -> None:
        """``reroute`` may lead the server's answer (SDP) another way, for networks that a test makes."""
        self._reroute = reroute
        self.acknowledges = not has_track
        self._url = url
        self._path = f"{session_path}/webrtc"
        self._token = token
        self._connection = RTCPeerConnection(RTCConfiguration([]))
        self._items: asyncio.Queue[str | bytes | None] = asyncio.Queue(maxsize=QUEUED_ITEMS)
        self._partial = b""
        self._opened = asyncio.Event()
        self._channel = self._connection.createDataChannel("ithaka")
        self._channel.on("open", self._opened.set)
        self._channel.on("message", self._arrived)
        self._channel.on("close", lambda: self._put(None))
        self._connection.on("connectionstatechange", self._state_changed)
        if has_track:
            self._take_track()

    async def open(self) -> None:
        connection = self._connection
        if urlsplit(self._url).hostname in _LOOPBACK:
            transports = [transceiver.sender.transport for transceiver in connection.getTransceivers()]
            assert connection.sctp is not None
            for transport in (*transports, connection.sctp.transport):
                _offer_loopback(transport.transport)
        await connection.setLocalDescription(await connection.createOffer())
        body = {"type": "offer", "sdp": connection.localDescription.sdp}
        async with httpx.AsyncClient(base_url=self._url, timeout=OPEN_TIMEOUT_S, trust_env=False) as http:
            answer = await http.post(self._path, json=body, headers={"Authorization": f"Bearer {self._token}"})
        answer.raise_for_status()
        sdp = answer.json()["sdp"]
        if self._reroute is not None:
            sdp = await self._reroute(sdp)
        await connection.setRemoteDescription(RTCSessionDescription(sdp, "answer"))
        async with asyncio.timeout(OPEN_TIMEOUT_S):
            await self._opened.wait()

    async def send(self, message: str) -> None:
        if self._channel.readyState == "open":
            self._channel.send(message)

    async def receive(self) -> str | bytes | None:
        return await self._items.get()

    async def close(self) -> None:
        await self._connection.close()

    def _take_track(self) -> None:
        transceiver = self._connection.addTransceiver("video", direction="recvonly")
        capabilities = RTCRtpReceiver.getCapabilities("video")
        assert capabilities is not None
        wanted = [codec for codec in capabilities.codecs if codec.mimeType in ("video/H264", "video/rtx")]
        transceiver.setCodecPreferences(wanted)
        # aiortc's own buffer gives a frame away only when the next one has begun, which is one frame too late.
        transceiver.receiver._RTCRtpReceiver__jitter_buffer = Assembler(self._put)  # type: ignore[attr-defined]

    def _arrived(self, message: str | bytes) -> None:
        if isinstance(message, str):
            self._put(message)
            return
        self._partial += message
        if len(self._partial) >= HEADER.size + int.from_bytes(self._partial[4:8], "big"):
            whole, self._partial = self._partial, b""
            self._put(parse_frame(whole).payload)

    def _state_changed(self) -> None:
        if self._connection.connectionState in ("failed", "closed"):
            self._put(None)

    def _put(self, item: str | bytes | None) -> None:
        if not self._items.full():
            self._items.put_nowait(item)


def _offer_loopback(transport: RTCIceTransport) -> None:
    """aioice has no setting for it."""
    agent = transport._connection
    gather = agent.get_component_candidates

    async def gather_loopback(component: int, addresses: list[str]) -> object:
        return await gather(component, ["127.0.0.1"])

    agent.get_component_candidates = gather_loopback  # type: ignore[method-assign,assignment]
