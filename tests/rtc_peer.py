"""A WebRTC peer for tests, on loopback: says what it is told to, keeps what it hears."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import av
from aioice import Connection
from aiortc import RTCConfiguration, RTCDataChannel, RTCPeerConnection, RTCRtpReceiver, RTCSessionDescription
from aiortc.mediastreams import MediaStreamError, MediaStreamTrack
from aiortc.rtcicetransport import RTCIceTransport

from tests.served import Frame, read_frame

DEADLINE_S = 15.0


class RtcPeer:
    """``pictures`` are decoded by this side's own decoder, in the order they came."""

    def __init__(
        self,
        *,
        with_video: bool,
        with_channel: bool,
        codec: str = "video/H264",
        configuration: RTCConfiguration | None = None,
    ) -> None:
        self.connection = RTCPeerConnection(configuration or RTCConfiguration([]))
        self.heard: asyncio.Queue[str | bytes] = asyncio.Queue()
        self.pictures: asyncio.Queue[av.VideoFrame] = asyncio.Queue()
        self.channel: RTCDataChannel | None = None
        self.stream = ""
        self._readers: list[asyncio.Task[None]] = []
        self._partial = b""
        if with_channel:
            self.channel = self.connection.createDataChannel("ithaka")
            self.channel.on("message", self.heard.put_nowait)
        if with_video:
            transceiver = self.connection.addTransceiver("video", direction="recvonly")
            capabilities = RTCRtpReceiver.getCapabilities("video")
            assert capabilities is not None
            transceiver.setCodecPreferences([known for known in capabilities.codecs if known.mimeType in (codec, "video/rtx")])
            self.connection.on("track", self._read)

    async def offer(self) -> str:
        for transport in self._ice_transports():
            _offer_loopback(transport)
        await self.connection.setLocalDescription(await self.connection.createOffer())
        return str(self.connection.localDescription.sdp)

    async def accept(self, answer: str) -> None:
        await self.connection.setRemoteDescription(RTCSessionDescription(answer, "answer"))

    async def say(self, kind: str, **fields: Any) -> None:
        assert self.channel is not None
        if self.channel.readyState != "open":
            opened = asyncio.Event()
            self.channel.on("open", opened.set)
            async with asyncio.timeout(DEADLINE_S):
                await opened.wait()
        self.channel.send(json.dumps({"type": kind, **fields}))

    async def hear(self) -> dict[str, Any] | Frame:
        async with asyncio.timeout(DEADLINE_S):
            while True:
                message = await self.heard.get()
                if isinstance(message, str):
                    assert not self._partial, "a frame was interrupted"
                    heard: dict[str, Any] = json.loads(message)
                    return heard
                assert len(message) <= 64 * 1024
                self._partial += message
                if len(self._partial) == 40 + int.from_bytes(self._partial[4:8], "big"):
                    whole, self._partial = self._partial, b""
                    return read_frame(whole)

    async def expect(self, kind: str) -> dict[str, Any]:
        """The next message of this type; states and pings on the way are skipped."""
        while True:
            message = await self.hear()
            assert isinstance(message, dict), f"a frame came instead of {kind}"
            if message["type"] == kind:
                return message
            assert message["type"] in ("state", "ping"), f"{message} came instead of {kind}"

    async def expect_error(self) -> dict[str, Any]:
        """Whatever comes before it."""
        while not isinstance(message := await self.hear(), dict) or message["type"] != "error":
            pass
        return message

    async def frame(self) -> Frame:
        while not isinstance(message := await self.hear(), Frame):
            assert message["type"] in ("state", "ping"), f"{message} came instead of a frame"
        return message

    async def greet(self) -> dict[str, Any]:
        hello = await self.expect("hello")
        self.stream = hello["stream"]
        await self.say("resume", stream=self.stream, next_seq=hello["next_seq"])
        return hello

    async def picture(self) -> av.VideoFrame:
        async with asyncio.timeout(DEADLINE_S):
            return await self.pictures.get()

    def fall_silent(self) -> None:
        """As one that was killed, or whose network is gone: nothing leaves it any more."""
        for transport in self._ice_transports():
            for protocol in transport._connection._protocols:
                protocol.send_data = _send_nothing  # type: ignore[method-assign]
                protocol.send_stun = lambda message, addr: None  # type: ignore[method-assign]

    async def closed(self) -> None:
        """Until the other side has ended the connection."""
        ended = asyncio.Event()

        def look() -> None:
            if self.connection.connectionState in ("closed", "failed"):
                ended.set()

        self.connection.on("connectionstatechange", look)
        look()
        async with asyncio.timeout(DEADLINE_S):
            await ended.wait()

    async def close(self) -> None:
        for reader in self._readers:
            reader.cancel()
        await self.connection.close()
        await asyncio.gather(*self._readers, return_exceptions=True)

    def _ice_transports(self) -> list[RTCIceTransport]:
        transports = [transceiver.sender.transport for transceiver in self.connection.getTransceivers()]
        if self.connection.sctp is not None:
            transports.append(self.connection.sctp.transport)
        return [transport.transport for transport in transports]

    def _read(self, track: MediaStreamTrack) -> None:
        async def read() -> None:
            with contextlib.suppress(MediaStreamError):
                while True:
                    picture = await track.recv()
                    assert isinstance(picture, av.VideoFrame)
                    self.pictures.put_nowait(picture)

        self._readers.append(asyncio.create_task(read()))


async def _send_nothing(data: bytes, addr: tuple[str, int]) -> None:
    """Into a void."""


def _offer_loopback(transport: RTCIceTransport) -> None:
    agent = transport._connection
    gather = agent.get_component_candidates

    async def gather_loopback(component: int, addresses: list[str]) -> object:
        # None are given where only a relay may be used.
        return await gather(component, ["127.0.0.1"] if addresses else [])

    agent.get_component_candidates = gather_loopback  # type: ignore[method-assign,assignment]


@contextlib.asynccontextmanager
async def connected(
    exchange: Callable[[str], Awaitable[str]],
    *,
    with_video: bool = False,
    with_channel: bool = True,
    configuration: RTCConfiguration | None = None,
) -> AsyncIterator[RtcPeer]:
    """``exchange`` brings an offer to the server and the answer back."""
    peer = RtcPeer(with_video=with_video, with_channel=with_channel, configuration=configuration)
    try:
        await peer.accept(await exchange(await peer.offer()))
        yield peer
    finally:
        await peer.close()


class BadNetwork:
    """What a peer receives, through a network that loses and delays: each datagram with ``loss``, all while it is ``down``."""

    def __init__(self, peer: RtcPeer, *, loss: float, delay_s: float, seed: int) -> None:
        self.is_down = False
        self.num_lost = 0
        self.loss = loss
        self._delay_s = delay_s
        self._random = random.Random(seed)
        transports = {id(t.transport.transport): t.transport.transport for t in peer.connection.getReceivers()}
        for transport in transports.values():
            self._stand_before(transport._connection)

    def _stand_before(self, agent: Connection) -> None:
        deliver = agent.data_received
        loop = asyncio.get_running_loop()

        def received(data: bytes, component: int) -> None:
            if self.is_down or self._random.random() < self.loss:
                self.num_lost += 1
            elif self._delay_s:
                loop.call_later(self._delay_s, deliver, data, component)
            else:
                deliver(data, component)

        agent.data_received = received  # type: ignore[method-assign]
