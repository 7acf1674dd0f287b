"""What a peer says before there is a connection: its offer, and candidates that come later. Pure; text in, facts out."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from aiortc import RTCIceCandidate
from aiortc.sdp import MediaDescription, SessionDescription

from ithaka.server.errors import ApiError
from ithaka.server.transports.webrtc.candidate_line import CandidateError, read_candidate
from ithaka.server.transports.webrtc.playout_delay import URI

MAX_CANDIDATES = 64
"""Of one offer or fragment; a machine with many interfaces has fewer."""
MAX_MEDIA = 8
MAX_EXTENSION_ID = 14
END_OF_CANDIDATES = "a=end-of-candidates"
DIGEST_BYTES = {"sha-256": 32, "sha-384": 48, "sha-512": 64}
"""Of a certificate, as DTLS compares them here; others prove too little."""
_CANDIDATE = "candidate:"
_HEX_PAIRS = re.compile(r"[0-9A-Fa-f]{2}(?::[0-9A-Fa-f]{2})*")


@dataclass(frozen=True, slots=True)
class Offer:
    """``sdp`` is what the peer said without the candidates that can't be used; ``ice_username`` names its ICE session,
    ``mids`` its media sections in order. ``playout_delay_id`` is the RTP header extension's, None where the peer does not know
    it.
    """

    sdp: str
    has_video: bool
    has_channel: bool
    ice_username: str
    mids: tuple[str, ...]
    playout_delay_id: int | None = None


@dataclass(frozen=True, slots=True)
class Fragment:
    """Candidates that trickle in. ``ice_username`` is empty where it does not say."""

    candidates: tuple[RTCIceCandidate, ...]
    ice_username: str

    def check(self, mids: Sequence[str]) -> None:
        """``mids`` of the offer. Raises ApiError ``sdp_invalid`` where a candidate belongs to no media section of it."""
        for candidate in self.candidates:
            index = candidate.sdpMLineIndex
            is_known = candidate.sdpMid in mids if index is None else index < len(mids)
            if not is_known:
                named = candidate.sdpMid if index is None else f"the one at place {index}"
                raise ApiError("sdp_invalid", f"the offer has no media section {named}; it has {', '.join(mids)}")


def read_offer(sdp: str) -> Offer:
    """Raises ApiError ``sdp_invalid``."""
    lines = [line for line in sdp.splitlines() if not _is_hidden(line)]
    candidates = [line for line in lines if line.startswith(f"a={_CANDIDATE}")]
    if len(candidates) > MAX_CANDIDATES:
        raise ApiError("sdp_invalid", f"an offer has at most {MAX_CANDIDATES} candidates", field="sdp")
    for line in candidates:
        _candidate(line)
    text = "\r\n".join((*lines, ""))
    try:
        description = SessionDescription.parse(text)
    # The parser does not say what it raises; whatever it is, the text is to blame.
    except Exception as error:
        raise ApiError("sdp_invalid", f"the offer is not SDP: {str(error) or type(error).__name__}", field="sdp") from None
    media = description.media
    if not media or len(media) > MAX_MEDIA:
        raise ApiError("sdp_invalid", f"an offer has 1 to {MAX_MEDIA} media sections, not {len(media)}", field="sdp")
    usernames = [section.ice.usernameFragment for section in media if section.ice is not None and section.ice.password]
    if len(usernames) < len(media) or not usernames[0]:
        raise ApiError("sdp_invalid", "a=ice-ufrag or a=ice-pwd is missing", field="sdp")
    for section in media:
        _check_fingerprints(section)
    mids = tuple(section.rtp.muxId for section in media)
    if not all(mids) or len(set(mids)) < len(mids):
        raise ApiError("sdp_invalid", "a=mid is missing, or two media sections have the same", field="sdp")
    videos = [section for section in media if section.kind == "video" and section.port]
    has_video = any(section.direction in ("recvonly", "sendrecv") for section in videos)
    has_channel = any(section.kind == "application" for section in media)
    if not has_video and not has_channel:
        raise ApiError("sdp_invalid", "the offer receives no video and opens no data channel", field="sdp")
    extensions = [extension for section in videos for extension in section.rtp.headerExtensions]
    # Longer ids would need another form of header, on which the peer would have to agree.
    delay_ids = (extension.id for extension in extensions if extension.uri == URI and 1 <= extension.id <= MAX_EXTENSION_ID)
    return Offer(text, has_video, has_channel, usernames[0], mids, next(delay_ids, None))


def read_fragment(text: str) -> Fragment:
    """``application/trickle-ice-sdpfrag`` (RFC 8840). Raises ApiError ``sdp_invalid``."""
    candidates: list[RTCIceCandidate] = []
    mid, username, says_something, num_media = "", "", False, 0
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if line.startswith("m="):
            mid, num_media = "", num_media + 1
        elif name == "a=mid":
            mid = value.strip()
        elif name == "a=ice-ufrag":
            username, says_something = value.strip(), True
        elif _is_hidden(line):
            says_something = True
        elif name == "a=candidate":
            candidate = _candidate(line)
            if mid:
                candidate.sdpMid = mid
            else:
                candidate.sdpMLineIndex = max(0, num_media - 1)
            candidates.append(candidate)
            if len(candidates) > MAX_CANDIDATES:
                raise ApiError("sdp_invalid", f"a fragment has at most {MAX_CANDIDATES} candidates")
    if not candidates and not says_something:
        raise ApiError("sdp_invalid", "the fragment names no candidate")
    return Fragment(tuple(candidates), username)


def _candidate(line: str) -> RTCIceCandidate:
    """Raises ApiError ``sdp_invalid``."""
    try:
        return read_candidate(line.removeprefix(f"a={_CANDIDATE}"))
    except CandidateError as error:
        raise ApiError("sdp_invalid", f"not a candidate, {error}: {line[:100]}") from None


def _check_fingerprints(section: MediaDescription) -> None:
    """Raises ApiError ``sdp_invalid`` unless the peer's certificate can be known by one, and all are well-formed."""
    if section.dtls is None or not section.dtls.fingerprints:
        raise ApiError("sdp_invalid", "a=fingerprint is missing", field="sdp")
    known = [one for one in section.dtls.fingerprints if one.algorithm.lower() in DIGEST_BYTES]
    if not known:
        raise ApiError("sdp_invalid", f"a=fingerprint has to be one of {', '.join(DIGEST_BYTES)}", field="sdp")
    for one in known:
        num_bytes = DIGEST_BYTES[one.algorithm.lower()]
        if not _HEX_PAIRS.fullmatch(one.value) or len(one.value) != 3 * num_bytes - 1:
            message = f"a=fingerprint:{one.algorithm} has {num_bytes} pairs of hexadecimal digits with colons between"
            raise ApiError("sdp_invalid", message, field="sdp")


def _is_hidden(line: str) -> bool:
    """A candidate under an mDNS name: resolving it would send multicast, and the peer shows its address by itself.

    The end of candidates is none to us: hidden ones may be all there are, and the peer is found when it knocks.
    """
    return (line.startswith(f"a={_CANDIDATE}") and ".local " in line) or line.strip() == END_OF_CANDIDATES
