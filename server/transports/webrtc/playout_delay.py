"""Tells the receiver of a track to show each picture at once, by the RTP header extension ``playout-delay``.

A browser otherwise holds pictures back so that they come evenly; here every picture is the newest one.
Source: webrtc.googlesource.com/src, docs/native-code/rtp-hdrext/playout-delay.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from aiortc import RTCRtpSender
from aiortc.rtcrtpparameters import RTCRtpHeaderExtensionParameters, RTCRtpSendParameters

URI = "http://www.webrtc.org/experiments/rtp-hdrext/playout-delay"
MID_URI = "urn:ietf:params:rtp-hdrext:sdes:mid"
NO_DELAY = "\0\0\0"
"""24 bits: 12 for the least delay and 12 for the greatest, in units of 10 ms."""


def with_playout_delay(
    chosen: Sequence[RTCRtpHeaderExtensionParameters], extension_id: int
) -> list[RTCRtpHeaderExtensionParameters]:
    """Header extensions for the answer: the chosen ones, with this one in the place of the media id. Receivers tell tracks
    apart by SSRC too, which every answer names.
    """
    rest = [extension for extension in chosen if extension.uri != MID_URI]
    return [*rest, RTCRtpHeaderExtensionParameters(id=extension_id, uri=URI)]


def send_without_delay(sender: RTCRtpSender) -> None:
    """aiortc writes only extensions that it knows; the media id is the one whose bytes, the same on every packet, are given."""
    send = sender.send

    async def send_as_mid(parameters: RTCRtpSendParameters) -> None:
        extensions = [
            replace(extension, uri=MID_URI) if extension.uri == URI else extension for extension in parameters.headerExtensions
        ]
        await send(replace(parameters, headerExtensions=extensions, muxId=NO_DELAY))

    sender.send = send_as_mid  # type: ignore[method-assign]
