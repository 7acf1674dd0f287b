"""Offers and candidates as text: what is understood, what is left out, what is refused and never breaks anything."""

from __future__ import annotations

import contextlib
import re

import pytest
from aiortc.rtcrtpparameters import RTCRtpHeaderExtensionParameters
from hypothesis import given, settings
from hypothesis import strategies as st

from ithaka.server.errors import ApiError
from ithaka.server.transports.webrtc.offer import MAX_CANDIDATES, read_fragment, read_offer
from ithaka.server.transports.webrtc.playout_delay import MID_URI, URI, with_playout_delay

OFFER = """\
v=0
o=- 4611731400430051336 2 IN IP4 127.0.0.1
s=-
t=0 0
a=group:BUNDLE 0 1
a=msid-semantic: WMS
m=video 9 UDP/TLS/RTP/SAVPF 102 103
c=IN IP4 0.0.0.0
a=rtcp:9 IN IP4 0.0.0.0
a=candidate:1 1 udp 2113937151 192.0.2.7 50000 typ host
a=candidate:2 1 udp 2113937150 0d8f7ff0-1b3c-4b57-9ef6-21d6a64f6d5e.local 50001 typ host
a=ice-ufrag:abcd
a=ice-pwd:0123456789abcdefghijklmn
a=fingerprint:sha-256 {fingerprint}
a=setup:actpass
a=mid:0
a=recvonly
a=rtcp-mux
a=rtpmap:102 H264/90000
a=rtcp-fb:102 nack pli
a=fmtp:102 level-asymmetry-allowed=1;packetization-mode=1;profile-level-id=42e01f
a=rtpmap:103 rtx/90000
a=fmtp:103 apt=102
m=application 9 UDP/DTLS/SCTP webrtc-datachannel
c=IN IP4 0.0.0.0
a=ice-ufrag:abcd
a=ice-pwd:0123456789abcdefghijklmn
a=fingerprint:sha-256 {fingerprint}
a=setup:actpass
a=mid:1
a=sctp-port:5000
""".format(fingerprint=":".join(f"{byte:02X}" for byte in range(32)))


def refused(sdp: str) -> str:
    with pytest.raises(ApiError) as caught:
        read_offer(sdp)
    assert caught.value.code == "sdp_invalid"
    return str(caught.value)


def test_an_offer_says_what_it_takes() -> None:
    offer = read_offer(OFFER)
    assert (offer.has_video, offer.has_channel, offer.ice_username) == (True, True, "abcd")


def test_names_that_only_multicast_could_resolve_are_left_out() -> None:
    offer = read_offer(OFFER)
    assert "192.0.2.7" in offer.sdp and ".local" not in offer.sdp


def test_the_end_of_candidates_ends_nothing() -> None:
    """All that a browser tells may be hidden names; it is found all the same when it knocks."""
    offer = read_offer(OFFER.replace("a=ice-ufrag", "a=end-of-candidates\na=ice-ufrag"))
    assert "end-of-candidates" not in offer.sdp
    assert read_fragment("a=end-of-candidates\r\n").candidates == ()
    assert read_fragment("a=candidate:1 1 udp 1 0d8f7ff0.local 9 typ host\r\n").candidates == ()


def test_video_that_is_only_sent_is_no_wish_for_video() -> None:
    offer = read_offer(OFFER.replace("a=recvonly", "a=sendonly"))
    assert not offer.has_video and offer.has_channel


@pytest.mark.parametrize(
    ("pattern", "told"),
    [
        (r"a=ice-ufrag.*\n", "ice-ufrag"),
        (r"a=ice-pwd.*\n", "ice-pwd"),
        (r"a=fingerprint.*\n", "fingerprint"),
        (r"m=(.|\n)*", "media sections"),
        (r"a=mid:1\n", "mid"),
    ],
)
def test_what_is_missing_is_named(pattern: str, told: str) -> None:
    assert told in refused(re.sub(pattern, "", OFFER))


@pytest.mark.parametrize(
    "fingerprint",
    [
        "md5 " + ":".join(["AB"] * 16),
        "sha-1 " + ":".join(["AB"] * 20),
        "sha-256 " + ":".join(["AB"] * 31),
        "sha-256 " + ":".join(["AB"] * 33),
        "sha-256 " + "AB" * 32,
        "sha-256 " + ":".join(["XY"] * 32),
        "sha-512 " + ":".join(["AB"] * 32),
        "sha-256 nonsense",
    ],
)
def test_a_fingerprint_that_no_certificate_can_have_is_refused(fingerprint: str) -> None:
    assert "fingerprint" in refused(re.sub(r"a=fingerprint:.*", f"a=fingerprint:{fingerprint}", OFFER))


def test_a_fingerprint_that_is_not_known_beside_one_that_is_does_no_harm() -> None:
    md5 = "a=fingerprint:md5 " + ":".join(["AB"] * 16)
    assert read_offer(OFFER.replace("a=fingerprint", f"{md5}\na=fingerprint")).mids == ("0", "1")


def test_two_sections_of_one_name_are_refused() -> None:
    assert "mid" in refused(OFFER.replace("a=mid:1", "a=mid:0"))


def test_a_line_that_is_said_wrong_is_shown_with_what_it_has_to_be() -> None:
    shown = "a=sctp-port:99999: the port has to be a number from 1 to 65535"
    assert refused(OFFER.replace("a=sctp-port:5000", "a=sctp-port:99999")) == shown
    assert refused(OFFER.replace("a=setup:actpass", "a=setup:holdconn")).startswith(
        "a=setup:holdconn: it has to be a=setup: and"
    )


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("a=sctp-port:5000", ["0", "65536", "-1", "5000 5001", "x", "", "\u0661"]),
        ("a=max-message-size:65536", ["1", "-1", "16383", "x", "1e9", str(2**64)]),
        ("a=extmap:1 urn:x", ["0 urn:x", "256 urn:x", "300 urn:x", "-1 urn:x", "4352 urn:x", "1", "x urn:x", "1/both urn:x"]),
        (
            "a=rtpmap:102 H264/90000",
            ["128 H264/90000", "-1 H264/90000", "72 H264/90000", "102 H264", "102 H264/0", "102 H264/x"],
        ),
        ("a=rtpmap:102 H264/90000", ["104 H264/90000", "103 H264/90000"]),
        ("a=fmtp:103 apt=102", ["128 apt=1", "103", "x apt=1", "103 apt=x", "103 apt", "103 packetization-mode", "75 apt=1"]),
        ("a=rtcp-fb:102 nack pli", ["102", "128 nack", "-1 nack", "x nack", "102  "]),
        ("a=ssrc:1 cname:x", ["4294967296 cname:x", "-1 cname:x", "x cname:x"]),
        ("a=ssrc-group:FID 1 2", ["FID 1 4294967296", "FID x"]),
        ("a=rtcp:9 IN IP4 0.0.0.0", ["65536 IN IP4 0.0.0.0", "x"]),
        ("a=sctpmap:5000 webrtc-datachannel 1024", ["65536 webrtc-datachannel 1024", "5000"]),
        ("a=ice-ufrag:abcd", ["abc", "a" * 257, "ab cd", "ab\u00e9d", ""]),
        ("a=ice-pwd:0123456789abcdefghijklmn", ["0123456789abcdefghijk", "a" * 257, "0123456789abcdefghij mn"]),
        ("a=setup:actpass", ["holdconn", "ACTPASS", ""]),
        ("a=mid:0", ["", "a b", "0" * 65, "\u00e9"]),
        ("a=group:BUNDLE 0 1", ["BUNDLE 0 2", "BUNDLE 0 0", "BUNDLE 0 1 1", "BUNDLE nowhere"]),
        ("m=video 9 UDP/TLS/RTP/SAVPF 102 103", ["text 9 RTP 102", "video 65536 RTP 102", "video -1 RTP 102", "video 9 RTP x"]),
        (
            "m=video 9 UDP/TLS/RTP/SAVPF 102 103",
            ["video 9 RTP 102 128", "video 9 RTP 102 72", "video 9 RTP", "video 9/2 RTP 102"],
        ),
        (
            "m=application 9 UDP/DTLS/SCTP webrtc-datachannel",
            ["application 9 UDP/DTLS/SCTP x", "application 9 DTLS/SCTP 65536"],
        ),
        ("v=0", ["1", "", "x"]),
    ],
)
def test_what_is_out_of_its_range_is_refused_at_once(line: str, wrong: list[str]) -> None:
    """A line that the offer has is replaced; another one joins the video section, where it is right as it stands."""
    sdp = OFFER if f"{line}\n" in OFFER else OFFER.replace("a=rtcp-mux\n", f"a=rtcp-mux\n{line}\n")
    read_offer(sdp)
    name = re.match(r"[avm]=(?:[a-z-]+:)?", line)
    assert name is not None
    for value in wrong:
        assert not re.search(
            r"Error|NoneType|Iteration|invalid literal|not in list|unpack", refused(sdp.replace(line, name[0] + value))
        )


@pytest.mark.parametrize(
    ("line", "told"),
    [("a=setup:actpass", "a=setup"), ("a=rtcp-mux", "a=rtcp-mux"), ("a=sctp-port:5000", "a=sctp-port"), ("v=0", "v=0")],
)
def test_what_no_connection_can_do_without_is_named(line: str, told: str) -> None:
    assert told in refused(OFFER.replace(f"{line}\n", ""))


def test_two_of_what_there_can_be_one_of_are_refused() -> None:
    channel = OFFER[OFFER.index("m=application") :]
    two_channels = OFFER.replace("BUNDLE 0 1", "BUNDLE 0 1 2") + channel.replace("a=mid:1", "a=mid:2")
    assert "data channels" in refused(two_channels)
    assert "BUNDLE" in refused(OFFER.replace("a=group:BUNDLE 0 1", "a=group:BUNDLE 0\na=group:BUNDLE 1"))
    assert "same id" in refused(OFFER.replace("a=rtcp-mux\n", "a=rtcp-mux\na=extmap:1 urn:x\na=extmap:1 urn:y\n"))


def test_what_makes_no_connection_is_left_out_and_a_missing_direction_is_both_ways() -> None:
    extras = [
        "a=msid:x ",
        "a=ssrc:1 cname:x",
        "a=extmap:4096 urn:x",
        "a=extmap:2/recvonly urn:y and more",
        "a=fmtp:50 x",
        "a=other:1",
    ]
    sdp = OFFER.replace("a=recvonly\n", "").replace("a=rtcp-mux\n", "\n".join(["a=rtcp-mux", *extras, ""]))
    offer = read_offer(sdp)
    assert offer.has_video and "a=sendrecv" in offer.sdp and "a=extmap:2 urn:y\r\n" in offer.sdp
    assert not [word for word in ("msid", "ssrc", "4096", "fmtp:50", "other", "c=", "o=") if word in offer.sdp]
    both_ways = sdp.replace("s=-", "s=-\na=recvonly")
    assert "a=recvonly" in read_offer(both_ways).sdp, "a direction may stand before all sections"


@pytest.mark.parametrize(
    ("line", "most"), [("", 65_536), ("a=max-message-size:0\n", None), ("a=max-message-size:16384\n", 16_384)]
)
def test_an_offer_says_how_long_a_message_may_be(line: str, most: int | None) -> None:
    assert read_offer(OFFER + line).max_message_bytes == most


def test_the_first_video_section_is_the_one_that_counts() -> None:
    """It is the one that gets the track."""
    video = OFFER[OFFER.index("m=video") : OFFER.index("m=application")]
    second = video.replace("a=mid:0", "a=mid:2")
    sdp = OFFER.replace("a=recvonly", "a=sendonly").replace("BUNDLE 0 1", "BUNDLE 0 1 2") + second
    assert not read_offer(sdp).has_video


UNUSABLE_CANDIDATES = [
    "1 1 udp 1 192.0.2.1 0 typ host",
    "1 1 udp 1 192.0.2.1 65536 typ host",
    "1 1 udp 1 127.0.0.1 99999 typ host",
    "1 1 udp 1 192.0.2.1 -1 typ host",
    "1 1 udp 1 192.0.2.1 \u0661 typ host",
    "1 1 udp 1 192.0.2.256 9 typ host",
    "1 1 udp 1 host.example.org 9 typ host",
    "1 1 udp 1 fe80::1%eth0 9 typ host",
    "1 1 udp 1 :: 9 type host",
    "1 1 udp 1 192.0.2.1 9 typ guest",
    "1 0 udp 1 192.0.2.1 9 typ host",
    "1 1 udp 4294967296 192.0.2.1 9 typ host",
    "1 1 udp 1 192.0.2.1 9 typ host raddr 192.0.2.1 rport x",
]


@pytest.mark.parametrize("candidate", UNUSABLE_CANDIDATES)
def test_a_candidate_that_nothing_can_be_sent_to_is_refused_at_once_and_later(candidate: str) -> None:
    assert "not a candidate" in refused(OFFER.replace("a=ice-ufrag", f"a=candidate:{candidate}\na=ice-ufrag", 1))
    with pytest.raises(ApiError) as caught:
        read_fragment(f"a=mid:0\r\na=candidate:{candidate}\r\n")
    assert caught.value.code == "sdp_invalid"


def test_a_candidate_of_a_section_that_the_offer_lacks_is_refused() -> None:
    candidate = "a=candidate:1 1 udp 1 192.0.2.1 9 typ host\r\n"
    for known in (f"a=mid:1\r\n{candidate}", f"m=x\r\nm=x\r\n{candidate}", candidate):
        read_fragment(known).check(("0", "1"))
    for unknown in (f"a=mid:2\r\n{candidate}", "m=x\r\n" * 3 + candidate):
        with pytest.raises(ApiError) as caught:
            read_fragment(unknown).check(("0", "1"))
        assert caught.value.code == "sdp_invalid"


def test_neither_video_nor_channel_is_refused() -> None:
    only_video = OFFER[: OFFER.index("m=application")].replace("a=recvonly", "a=inactive").replace("BUNDLE 0 1", "BUNDLE 0")
    assert "no data channel" in refused(only_video)


def test_too_many_candidates_are_refused() -> None:
    many = "".join(f"a=candidate:{n} 1 udp 1 192.0.2.7 {n} typ host\n" for n in range(1, MAX_CANDIDATES + 1))
    assert "candidates" in refused(OFFER.replace("a=setup:actpass\na=mid:0", f"{many}a=setup:actpass\na=mid:0"))


@pytest.mark.parametrize("text", ["", "hello", "v=0", "{}", "m=video", "v=0\nm=video x y z\n", "\x00" * 100])
def test_what_is_no_sdp_is_refused(text: str) -> None:
    refused(text)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, len(OFFER) - 1), st.text(max_size=6)), max_size=6), st.booleans())
def test_a_damaged_offer_is_read_or_refused_and_nothing_else(damages: list[tuple[int, str]], is_cut: bool) -> None:
    sdp = OFFER
    for at, text in damages:
        sdp = sdp[:at] + text + ("" if is_cut else sdp[at + len(text) :])
    try:
        read_offer(sdp)
    except ApiError as error:
        assert error.code == "sdp_invalid"


@settings(deadline=None)
@given(st.text(max_size=400))
def test_any_text_as_fragment_is_read_or_refused(text: str) -> None:
    for given_text in (text, f"a=candidate:{text}", f"m=x\na=mid:0\na=candidate:1 1 udp {text} typ host"):
        with contextlib.suppress(ApiError):
            read_fragment(given_text)


def test_a_fragment_gives_its_candidates_to_their_media() -> None:
    fragment = read_fragment(
        "a=ice-ufrag:abcd\r\na=ice-pwd:x\r\nm=video 9 RTP/AVP 0\r\na=mid:0\r\n"
        "a=candidate:1 1 udp 2113937151 192.0.2.7 50000 typ host\r\n"
        "a=candidate:2 1 udp 2113937151 something.local 50000 typ host\r\n"
        "m=audio 9 RTP/AVP 0\r\na=candidate:3 1 udp 1 2001:db8::1 50002 typ host\r\na=end-of-candidates\r\n"
    )
    assert [(c.ip, c.sdpMid, c.sdpMLineIndex) for c in fragment.candidates] == [
        ("192.0.2.7", "0", None),
        ("2001:db8::1", None, 1),
    ]
    assert fragment.ice_username == "abcd"


@pytest.mark.parametrize("text", ["", "a=mid:0", "a=candidate:1 1 udp", "a=candidate:x x x x x typ x"])
def test_a_fragment_without_a_good_candidate_is_refused(text: str) -> None:
    with pytest.raises(ApiError):
        read_fragment(text)


def test_a_fragment_with_too_many_candidates_is_refused() -> None:
    with pytest.raises(ApiError):
        read_fragment("a=candidate:1 1 udp 1 192.0.2.7 1 typ host\n" * (MAX_CANDIDATES + 1))


def with_extension(number: int) -> str:
    return OFFER.replace("a=rtcp-mux\n", f"a=rtcp-mux\na=extmap:{number} {URI}\n")


def test_an_offer_says_whether_it_can_be_told_to_show_pictures_at_once() -> None:
    assert read_offer(OFFER).playout_delay_id is None
    assert read_offer(with_extension(5)).playout_delay_id == 5
    assert read_offer(with_extension(15)).playout_delay_id is None, "only ids that fit the short form of header"


def test_the_answer_has_the_playout_delay_in_the_place_of_the_media_id() -> None:
    chosen = [RTCRtpHeaderExtensionParameters(id=1, uri=MID_URI), RTCRtpHeaderExtensionParameters(id=2, uri="urn:other")]
    assert [(one.id, one.uri) for one in with_playout_delay(chosen, 5)] == [(2, "urn:other"), (5, URI)]
