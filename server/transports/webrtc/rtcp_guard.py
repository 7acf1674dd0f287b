"""Stands between SRTP and aiortc's RTCP: looks at what comes, and hears FIR, which aiortc does not route."""

from __future__ import annotations

import time
from collections.abc import Callable

from aiortc import RTCDtlsTransport

from ithaka.server.session.rate import RateBound
from ithaka.server.transports.webrtc.rtcp_packet import RtcpError, read_compound

MAX_LOST_PER_S = 512
"""Packets that are sent again for one peer: about what goes out in a second at 5 Mbit/s. More is a key frame's to mend."""
NAMES = ("_handle_rtcp_data", "_handle_rtp_data")
"""Of aiortc's own, that are used here."""


class RtcpGuard:
    """``on_key_frame`` gets the streams of which a key frame is asked for; ``on_fault``: aiortc failed on what passed."""

    def __init__(
        self,
        dtls: RTCDtlsTransport,
        *,
        on_key_frame: Callable[[frozenset[int]], None],
        on_fault: Callable[[Exception], None],
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._now_s = now_s
        self._lost = RateBound(MAX_LOST_PER_S, now_s())
        self._handle = dtls._handle_rtcp_data
        self._on_key_frame = on_key_frame
        self._on_fault = on_fault
        dtls._handle_rtcp_data = self._handle_rtcp_data  # type: ignore[method-assign]
        dtls._handle_rtp_data = _receive_no_media  # type: ignore[method-assign]

    async def _handle_rtcp_data(self, data: bytes) -> None:
        try:
            compound = read_compound(data)
        except RtcpError:
            return
        if compound.num_lost and not self._lost.take(self._now_s(), compound.num_lost):
            return
        try:
            await self._handle(data)
        except ConnectionError:
            raise
        except Exception as error:
            self._on_fault(error)
            return
        if compound.key_frame_ssrcs:
            self._on_key_frame(compound.key_frame_ssrcs)


def missing_names() -> list[str]:
    """Of aiortc's private ones, what this version lacks."""
    return [name for name in NAMES if name not in vars(RTCDtlsTransport)]


async def _receive_no_media(data: bytes, arrival_time_ms: int) -> None:
    """No track comes from a peer."""
