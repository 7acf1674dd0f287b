"""What a peer says before there is a connection: its offer, and candidates that come later. Pure; text in, facts out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from aiortc import RTCIceCandidate
from aiortc.rtcdtlstransport import RTCDtlsFingerprint
from aiortc.sdp import MediaDescription, SessionDescription

from ithaka.server.errors import ApiError
from ithaka.server.transports.webrtc.candidate_line import CandidateError, is_usable, place_of, read_candidate
from ithaka.server.transports.webrtc.offer_lines import LineError
from ithaka.server.transports.webrtc.offer_sections import used_lines
from ithaka.server.transports.webrtc.places import Place
from ithaka.server.transports.webrtc.playout_delay import URI

MAX_CANDIDATES = 64
"""Of one offer or fragment, and of a connection in its whole life; a machine with many interfaces has fewer."""
MAX_MEDIA = 8
MAX_SHORT_EXTENSION_ID = 14
DEFAULT_MESSAGE_BYTES = 65_536
"""Of a peer that does not say how much it takes at once (RFC 8841)."""
OLD_SCTP_PROFILE = "DTLS/SCTP"
END_OF_CANDIDATES = "a=end-of-candidates"
DIGEST_BYTES = {"sha-256": 32, "sha-384": 48, "sha-512": 64}
"""Of a certificate, as DTLS compares them here; others prove too little."""
_CANDIDATE = "candidate:"


@dataclass(frozen=True, slots=True)
class Offer:
    """``sdp`` is what of the peer's words a connection is made from; ``ice_username`` names its ICE session, ``mids`` its media
    sections in order. ``playout_delay_id`` is the RTP header extension's, None where the peer does not know it.
    ``max_message_bytes`` of the data channel; None for any. ``fir_payload_types``: those whose key frames the peer may ask for
    by FIR. ``places``: of its candidates.
    """

    sdp: str
    has_video: bool
    has_channel: bool
    ice_username: str
    mids: tuple[str, ...]
    playout_delay_id: int | None
    max_message_bytes: int | None
    fir_payload_types: frozenset[int]
    places: frozenset[Place]


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
    lines = [line.rstrip() for line in sdp.splitlines() if line.strip() and not _is_hidden(line)]
    candidates = [line for line in lines if line.startswith(f"a={_CANDIDATE}")]
    if len(candidates) > MAX_CANDIDATES:
        raise _invalid(f"an offer has at most {MAX_CANDIDATES} candidates")
    read = {line: _candidate(line) for line in candidates}
    used = {line: candidate for line, candidate in read.items() if is_usable(candidate)}
    try:
        text = used_lines([line for line in lines if line not in read or line in used])
    except LineError as error:
        raise _invalid(str(error)) from None
    try:
        description = SessionDescription.parse(text)
    # Each line has its form; what the parser still dislikes is not for the peer's eyes.
    except Exception as error:
        raise _invalid("the lines of the offer don't go together") from error
    media = description.media
    if not media or len(media) > MAX_MEDIA:
        raise _invalid(f"an offer has 1 to {MAX_MEDIA} media sections, not {len(media)}")
    usernames = [_ice_username(section) for section in media]
    for section in media:
        _check_section(section)
    mids = tuple(section.rtp.muxId for section in media)
    if not all(mids) or len(set(mids)) < len(mids):
        raise _invalid("a=mid is missing, or two media sections have the same")
    _check_bundle(description, mids)
    channels = [section for section in media if section.kind == "application"]
    if len(channels) > 1:
        raise _invalid("an offer has one media section for data channels at most")
    # One track is sent, and the first video section is the one that gets it.
    video = next((section for section in media if section.kind == "video"), None)
    has_video = video is not None and video.port != 0 and video.direction in ("recvonly", "sendrecv")
    if not has_video and not channels:
        raise _invalid("the first video section of the offer receives nothing, and the offer opens no data channel")
    capabilities = channels[0].sctpCapabilities if channels else None
    return Offer(
        text,
        has_video,
        bool(channels),
        usernames[0],
        mids,
        _playout_delay_id(video) if has_video and video is not None else None,
        DEFAULT_MESSAGE_BYTES if capabilities is None else capabilities.maxMessageSize or None,
        frozenset() if video is None else _fir_payload_types(video),
        frozenset(map(place_of, used.values())),
    )


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
            candidate, says_something = _candidate(line), True
            if not is_usable(candidate):
                continue
            if mid:
                candidate.sdpMid = mid
            else:
                candidate.sdpMLineIndex = max(0, num_media - 1)
            candidates.append(candidate)
            if len(candidates) > MAX_CANDIDATES:
                raise ApiError("sdp_invalid", f"a fragment has at most {MAX_CANDIDATES} candidates")
    if not says_something:
        raise ApiError("sdp_invalid", "the fragment names no candidate")
    return Fragment(tuple(candidates), username)


def _candidate(line: str) -> RTCIceCandidate:
    """Raises ApiError ``sdp_invalid``."""
    try:
        return read_candidate(line.removeprefix(f"a={_CANDIDATE}"))
    except CandidateError as error:
        raise ApiError("sdp_invalid", f"not a candidate, {error}: {line[:100]}") from None


def _ice_username(section: MediaDescription) -> str:
    """Raises ApiError ``sdp_invalid``."""
    if section.ice is None or not section.ice.usernameFragment or not section.ice.password:
        raise _invalid("a=ice-ufrag or a=ice-pwd is missing")
    return section.ice.usernameFragment


def _check_section(section: MediaDescription) -> None:
    """Raises ApiError ``sdp_invalid``."""
    if section.dtls is None:
        raise _invalid("a=setup is missing")
    _check_fingerprints(section.dtls.fingerprints)
    if section.kind == "application":
        if section.sctp_port is None and section.profile != OLD_SCTP_PROFILE:
            raise _invalid("a=sctp-port is missing")
        return
    if not section.rtcp_mux:
        raise _invalid("a=rtcp-mux is missing: media and its reports share one port here")
    payload_types = [codec.payloadType for codec in section.rtp.codecs]
    if len(set(payload_types)) < len(payload_types):
        raise _invalid("two a=rtpmap of a media section have the same payload type")
    if not set(payload_types) <= set(section.fmt):
        raise _invalid("an a=rtpmap has a payload type that its m= line does not list")
    extension_ids = [extension.id for extension in section.rtp.headerExtensions]
    if len(set(extension_ids)) < len(extension_ids):
        raise _invalid("two a=extmap of a media section have the same id")


def _check_fingerprints(fingerprints: Sequence[RTCDtlsFingerprint]) -> None:
    """Raises ApiError ``sdp_invalid`` unless the peer's certificate can be known by one, and all are well-formed."""
    if not fingerprints:
        raise _invalid("a=fingerprint is missing")
    known = [one for one in fingerprints if one.algorithm.lower() in DIGEST_BYTES]
    if not known:
        raise _invalid(f"a=fingerprint has to be one of {', '.join(DIGEST_BYTES)}")
    for one in known:
        num_bytes = DIGEST_BYTES[one.algorithm.lower()]
        if len(one.value) != 3 * num_bytes - 1:
            raise _invalid(f"a=fingerprint:{one.algorithm} has {num_bytes} pairs of hexadecimal digits with colons between")


def _check_bundle(description: SessionDescription, mids: Sequence[str]) -> None:
    """Raises ApiError ``sdp_invalid``."""
    bundles = [group.items for group in description.group if group.semantic == "BUNDLE"]
    if len(bundles) > 1:
        raise _invalid("an offer has one a=group:BUNDLE at most")
    for bundled in bundles:
        if len(set(bundled)) < len(bundled) or not set(bundled) <= set(mids):
            raise _invalid(f"a=group:BUNDLE has to name media sections of the offer, each once: {', '.join(mids)}")


def _playout_delay_id(video: MediaDescription) -> int | None:
    # Longer ids would need another form of header, on which the peer would have to agree.
    extensions = video.rtp.headerExtensions
    return next((one.id for one in extensions if one.uri == URI and one.id <= MAX_SHORT_EXTENSION_ID), None)


def _fir_payload_types(video: MediaDescription) -> frozenset[int]:
    return frozenset(
        codec.payloadType
        for codec in video.rtp.codecs
        if codec.payloadType is not None
        and any((feedback.type, feedback.parameter) == ("ccm", "fir") for feedback in codec.rtcpFeedback)
    )


def _invalid(message: str) -> ApiError:
    return ApiError("sdp_invalid", message, field="sdp")


def _is_hidden(line: str) -> bool:
    """A candidate under an mDNS name: resolving it would send multicast, and the peer shows its address by itself.

    The end of candidates is none to us: hidden ones may be all there are, and the peer is found when it knocks.
    """
    return (line.startswith(f"a={_CANDIDATE}") and ".local " in line) or line.strip() == END_OF_CANDIDATES
