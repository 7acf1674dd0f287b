"""What a peer says before there is a connection: its offer, and candidates that come later. Pure; text in, facts out."""

from __future__ import annotations

from dataclasses import dataclass

from aiortc import RTCIceCandidate
from aiortc.sdp import SessionDescription, candidate_from_sdp

from ithaka.server.errors import ApiError
from ithaka.server.transports.webrtc.playout_delay import URI

MAX_CANDIDATES = 64
"""Of one offer or fragment; a machine with many interfaces has fewer."""
MAX_MEDIA = 8
MAX_EXTENSION_ID = 14
END_OF_CANDIDATES = "a=end-of-candidates"
_CANDIDATE = "candidate:"


@dataclass(frozen=True, slots=True)
class Offer:
    """``sdp`` is what the peer said without the candidates that can't be used; ``ice_username`` names its ICE session.
    ``playout_delay_id`` is the RTP header extension's, None where the peer does not know it.
    """

    sdp: str
    has_video: bool
    has_channel: bool
    ice_username: str
    playout_delay_id: int | None = None


@dataclass(frozen=True, slots=True)
class Fragment:
    """Candidates that trickle in. ``ice_username`` is empty where it does not say."""

    candidates: tuple[RTCIceCandidate, ...]
    ice_username: str


def read_offer(sdp: str) -> Offer:
    """Raises ApiError ``sdp_invalid``."""
    lines = [line for line in sdp.splitlines() if not _is_hidden(line)]
    if sum(line.startswith(f"a={_CANDIDATE}") for line in lines) > MAX_CANDIDATES:
        raise ApiError("sdp_invalid", f"an offer has at most {MAX_CANDIDATES} candidates", field="sdp")
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
    if any(section.dtls is None or not section.dtls.fingerprints for section in media):
        raise ApiError("sdp_invalid", "a=fingerprint is missing", field="sdp")
    videos = [section for section in media if section.kind == "video" and section.port]
    has_video = any(section.direction in ("recvonly", "sendrecv") for section in videos)
    has_channel = any(section.kind == "application" for section in media)
    if not has_video and not has_channel:
        raise ApiError("sdp_invalid", "the offer receives no video and opens no data channel", field="sdp")
    extensions = [extension for section in videos for extension in section.rtp.headerExtensions]
    # Longer ids would need another form of header, on which the peer would have to agree.
    delay_ids = (extension.id for extension in extensions if extension.uri == URI and 1 <= extension.id <= MAX_EXTENSION_ID)
    return Offer(text, has_video, has_channel, usernames[0], next(delay_ids, None))


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
            candidates.append(_candidate(line, mid, max(0, num_media - 1)))
            if len(candidates) > MAX_CANDIDATES:
                raise ApiError("sdp_invalid", f"a fragment has at most {MAX_CANDIDATES} candidates")
    if not candidates and not says_something:
        raise ApiError("sdp_invalid", "the fragment names no candidate")
    return Fragment(tuple(candidates), username)


def _candidate(line: str, mid: str, media_index: int) -> RTCIceCandidate:
    try:
        candidate = candidate_from_sdp(line.removeprefix(f"a={_CANDIDATE}"))
    except (ValueError, IndexError, AssertionError, KeyError):
        raise ApiError("sdp_invalid", f"not a candidate: {line[:100]}") from None
    if mid:
        candidate.sdpMid = mid
    else:
        candidate.sdpMLineIndex = media_index
    return candidate


def _is_hidden(line: str) -> bool:
    """A candidate under an mDNS name: resolving it would send multicast, and the peer shows its address by itself.

    The end of candidates is none to us: hidden ones may be all there are, and the peer is found when it knocks.
    """
    return (line.startswith(f"a={_CANDIDATE}") and ".local " in line) or line.strip() == END_OF_CANDIDATES
