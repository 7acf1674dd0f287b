"""The lines of an offer (RFC 8866): what each may say, and which of them a connection is made from. Pure.

The transport believes what it reads, so a number beyond its range would fail later, when nobody could be told any more.
What no connection is made from is judged too where it has a form, and left out.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

MAX_PAYLOAD_TYPE = 127
RTCP_PAYLOAD_TYPES = range(72, 77)
"""They look like RTCP on a shared port (RFC 5761)."""
MAX_PORT = 65_535
MAX_SSRC = 2**32 - 1
MAX_EXTENSION_ID = 255
UNSETTLED_EXTENSION_IDS = range(4096, 4352)
"""In an offer they ask for another id (RFC 8285, 7); such an extension is not used here."""
MAX_MID_CHARACTERS = 64
MAX_MESSAGE_SIZE = 2**64 - 1
MIN_MESSAGE_BYTES = 16 * 1024
"""Of a data channel's other end: every message of the protocol is shorter."""
INTEGER_PARAMETERS = frozenset(
    {"apt", "max-fr", "max-fs", "maxplaybackrate", "minptime", "packetization-mode", "stereo", "useinbandfec"}
)
_NUMBER = "-?[0-9]{1,30}"
_TOKEN = r"[!#-'*+\-.0-9A-Z^-~]"
_MID = f"{_TOKEN}{{1,{MAX_MID_CHARACTERS}}}"
_ICE = "[A-Za-z0-9+/]"
_LINE = re.compile(r"[a-z]=[^\x00-\x1f\x7f]*")
_DIGITS = re.compile("[0-9]{1,10}")


class LineError(Exception):
    """What is wrong, in a sentence."""


@dataclass(frozen=True, slots=True)
class _Rule:
    """``form`` for people; ``ranges`` of the pattern's numbers, by name. ``kept`` makes the line that is passed on; empty for
    lines that are not.
    """

    pattern: re.Pattern[str]
    form: str
    ranges: tuple[tuple[str, int, int], ...] = ()
    kept: str = ""


@dataclass(frozen=True, slots=True)
class Line:
    """``text`` is empty where no connection is made from it. ``fields`` by name; ``name`` is an attribute's, or ``m=``."""

    name: str
    fields: dict[str, str]
    text: str


def _rule(form: str, pattern: str, *ranges: tuple[str, int, int], kept: str = "") -> _Rule:
    return _Rule(re.compile(pattern), form, ranges, kept)


_PAYLOAD = ("payload_type", 0, MAX_PAYLOAD_TYPE)
_PT = f"(?P<payload_type>{_NUMBER})"
_ATTRIBUTES = {
    "ice-lite": _rule("a=ice-lite", "", kept="a=ice-lite"),
    "ice-ufrag": _rule("a=ice-ufrag: and 4 to 256 of letters, digits, + and /", f"{_ICE}{{4,256}}", kept="a=ice-ufrag:{rest}"),
    "ice-pwd": _rule("a=ice-pwd: and 22 to 256 of letters, digits, + and /", f"{_ICE}{{22,256}}", kept="a=ice-pwd:{rest}"),
    "fingerprint": _rule(
        "a=fingerprint:<hash> and pairs of hexadecimal digits with colons between",
        "[A-Za-z0-9-]{1,32} [0-9A-Fa-f]{2}(?::[0-9A-Fa-f]{2}){0,127}",
        kept="a=fingerprint:{rest}",
    ),
    "setup": _rule("a=setup: and actpass, active or passive", "actpass|active|passive", kept="a=setup:{rest}"),
    "group": _rule("a=group:<kind> and mids", f"(?P<kind>{_TOKEN}{{1,32}})(?P<mids>(?: {_MID})*)", kept="a=group:{rest}"),
    "mid": _rule(f"a=mid: and a name of at most {MAX_MID_CHARACTERS} characters", _MID, kept="a=mid:{rest}"),
    **{name: _rule(f"a={name}", "", kept=f"a={name}") for name in ("sendrecv", "sendonly", "recvonly", "inactive", "rtcp-mux")},
    "rtpmap": _rule(
        "a=rtpmap:<payload type> <encoding>/<clock rate>[/<channels>]",
        f"{_PT} (?P<encoding>{_TOKEN}{{1,64}})/(?P<clock_rate>{_NUMBER})(?:/(?P<channels>{_NUMBER}))?",
        _PAYLOAD,
        ("clock_rate", 1, 2**32 - 1),
        ("channels", 1, 255),
        kept="a=rtpmap:{rest}",
    ),
    "fmtp": _rule("a=fmtp:<payload type> <parameters>", f"{_PT} (?P<parameters>[!-~][ -~]*)", _PAYLOAD, kept="a=fmtp:{rest}"),
    "rtcp-fb": _rule(
        "a=rtcp-fb:<payload type or *> <kind> [<more>]",
        rf"(?:\*|{_PT}) (?P<kind>{_TOKEN}{{1,64}})(?: (?P<more>[!-~][ -~]*))?",
        _PAYLOAD,
        kept="a=rtcp-fb:{rest}",
    ),
    "extmap": _rule(
        "a=extmap:<id>[/<direction>] <URI>",
        f"(?P<id>{_NUMBER})(?:/(?:sendrecv|sendonly|recvonly|inactive))? (?P<uri>[!-~]{{1,256}})(?: [ -~]*)?",
        kept="a=extmap:{id} {uri}",
    ),
    "sctp-port": _rule("a=sctp-port:<port>", f"(?P<port>{_NUMBER})", ("port", 1, MAX_PORT), kept="a=sctp-port:{rest}"),
    "max-message-size": _rule(
        "a=max-message-size:<bytes>", f"(?P<size>{_NUMBER})", ("size", 0, MAX_MESSAGE_SIZE), kept="a=max-message-size:{rest}"
    ),
    # From here on: nothing is made from them.
    "sctpmap": _rule("a=sctpmap:<port> <protocol>", f"(?P<port>{_NUMBER}) [ -~]+", ("port", 1, MAX_PORT)),
    "rtcp": _rule("a=rtcp:<port> [<address>]", f"(?P<port>{_NUMBER})(?: [ -~]*)?", ("port", 0, MAX_PORT)),
    "ssrc": _rule("a=ssrc:<ssrc> <attribute>", f"(?P<ssrc>{_NUMBER})(?: .*)?", ("ssrc", 0, MAX_SSRC)),
    "ssrc-group": _rule("a=ssrc-group:<kind> <ssrcs>", f"{_TOKEN}+(?P<ssrcs>(?: {_NUMBER})*)"),
}
_MEDIA = {
    "rtp": _rule(
        "m=audio|video <port> <protocol> <payload types>",
        f"(?P<kind>audio|video) (?P<port>{_NUMBER}) (?P<profile>[A-Z/]{{1,32}})(?P<payload_types>(?: {_NUMBER})+)",
        ("port", 0, MAX_PORT),
        kept="m={rest}",
    ),
    "sctp": _rule(
        "m=application <port> UDP/DTLS/SCTP webrtc-datachannel",
        f"(?P<kind>application) (?P<port>{_NUMBER}) (?P<profile>(?:UDP|TCP)/DTLS/SCTP) webrtc-datachannel",
        ("port", 0, MAX_PORT),
        kept="m={rest}",
    ),
    "old sctp": _rule(
        "m=application <port> DTLS/SCTP <SCTP's port>",
        f"(?P<kind>application) (?P<port>{_NUMBER}) (?P<profile>DTLS/SCTP) (?P<sctp_port>{_NUMBER})",
        ("port", 0, MAX_PORT),
        ("sctp_port", 1, MAX_PORT),
        kept="m={rest}",
    ),
}


def read_line(line: str) -> Line:
    """Any line but a candidate, which has its own reader. Raises LineError."""
    if not _LINE.fullmatch(line):
        raise LineError("it is none of SDP: a letter, =, and text without control characters")
    if line.startswith("m="):
        return _read("m=", line[2:], _MEDIA[_kind_of_media(line)])
    name, _, value = line[2:].partition(":")
    rule = _ATTRIBUTES.get(name) if line.startswith("a=") else None
    if rule is None:
        return Line(name if line.startswith("a=") else line[:2], {}, "")
    return _read(name, value, rule)


def _read(name: str, value: str, rule: _Rule) -> Line:
    found = rule.pattern.fullmatch(value)
    if found is None:
        raise LineError(f"it has to be {rule.form}")
    fields = {key: text for key, text in found.groupdict().items() if text is not None}
    for field, least, most in rule.ranges:
        if field in fields:
            _check_number(field.replace("_", " "), fields[field], least, most)
    _check_lists(name, fields)
    return Line(name, fields, rule.kept.format(rest=value, **fields))


def _check_lists(name: str, fields: dict[str, str]) -> None:
    """What is more than one number from a range. Raises LineError."""
    if "payload_type" in fields and int(fields["payload_type"]) in RTCP_PAYLOAD_TYPES:
        raise LineError(f"the payload type {fields['payload_type']} can't be told from RTCP")
    for number in fields.get("payload_types", "").split():
        _check_number("payload type", number, 0, MAX_PAYLOAD_TYPE)
        if int(number) in RTCP_PAYLOAD_TYPES:
            raise LineError(f"the payload type {number} can't be told from RTCP")
    for number in fields.get("ssrcs", "").split():
        _check_number("ssrc", number, 0, MAX_SSRC)
    if name == "extmap" and int(fields["id"]) not in UNSETTLED_EXTENSION_IDS:
        _check_number("id", fields["id"], 1, MAX_EXTENSION_ID)
    if name == "max-message-size" and 0 < int(fields["size"]) < MIN_MESSAGE_BYTES:
        raise LineError(f"the size is 0, for any, or at least {MIN_MESSAGE_BYTES}: the protocol's messages are not cut smaller")
    for parameter in fields.get("parameters", "").split(";"):
        key, _, value = (part.strip() for part in parameter.partition("="))
        if key in INTEGER_PARAMETERS and not _DIGITS.fullmatch(value):
            raise LineError(f"{key} has to be a number")


def _check_number(name: str, text: str, least: int, most: int) -> None:
    if not least <= int(text) <= most:
        raise LineError(f"the {name} has to be a number from {least} to {most}")


def _kind_of_media(line: str) -> str:
    if not line.startswith("m=application"):
        return "rtp"
    return "old sctp" if " DTLS/SCTP " in line else "sctp"
