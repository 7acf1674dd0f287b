"""A candidate as SDP writes it (RFC 8839, 5.1): only what a datagram can be sent to passes. Pure."""

from __future__ import annotations

import ipaddress
import re

from aiortc import RTCIceCandidate
from aiortc.sdp import candidate_from_sdp

from ithaka.server.transports.webrtc.places import Place

MAX_PORT = 65_535
MAX_COMPONENT = 256
MEDIA_COMPONENT = 1
MAX_PRIORITY = 2**32 - 1
TYPES = frozenset({"host", "srflx", "prflx", "relay"})
_NUMBER = re.compile(r"[0-9]{1,10}")


class CandidateError(Exception):
    """What is wrong, in a few words."""


def read_candidate(text: str) -> RTCIceCandidate:
    """``text`` is what follows ``candidate:``. Raises CandidateError.

    The transport is told nothing that it would fail on later, when nobody could be told any more.
    """
    fields = text.split()
    if len(fields) < 8 or fields[6] != "typ" or fields[7] not in TYPES:
        raise CandidateError("it needs foundation, component, transport, priority, address, port, typ and a known type")
    _check_number("component", fields[1], 1, MAX_COMPONENT)
    _check_number("priority", fields[3], 0, MAX_PRIORITY)
    _check_number("port", fields[5], 1, MAX_PORT)
    try:
        address = ipaddress.ip_address(fields[4])
    except ValueError:
        raise CandidateError("its address is none") from None
    if isinstance(address, ipaddress.IPv6Address) and address.scope_id is not None:
        raise CandidateError("its address has a zone, which means nothing on another machine")
    try:
        return candidate_from_sdp(text)
    # What is left are extensions: a related port that is no number.
    except ValueError:
        raise CandidateError("an extension of it is no number") from None


def place_of(candidate: RTCIceCandidate) -> Place:
    return str(ipaddress.ip_address(candidate.ip)), candidate.port


def is_usable(candidate: RTCIceCandidate) -> bool:
    """Media and its reports share one component here, and go over UDP; one that was found by a check shows itself."""
    is_media = candidate.component == MEDIA_COMPONENT and candidate.protocol.lower() == "udp"
    return is_media and candidate.type != "prflx"


def _check_number(name: str, text: str, least: int, most: int) -> None:
    if not _NUMBER.fullmatch(text) or not least <= int(text) <= most:
        raise CandidateError(f"its {name} is no number from {least} to {most}")
