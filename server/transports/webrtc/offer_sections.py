"""What of an offer's lines a connection is made from, section by section. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ithaka.server.transports.webrtc.offer_lines import MAX_EXTENSION_ID, Line, LineError, read_line

VERSION = "v=0"
_CANDIDATE = "candidate"
_DIRECTIONS = frozenset({"sendrecv", "sendonly", "recvonly", "inactive"})


def used_lines(lines: Sequence[str]) -> str:
    """SDP of the lines that are used, each in its plain form; candidates were looked at before. Raises LineError, which begins
    with the line to blame.
    """
    if not lines or lines[0] != VERSION:
        raise LineError(f"an offer is SDP, which begins with {VERSION}")
    session, *sections = _sections(map(_read, lines[1:]))
    direction = next((line.name for line in session if line.name in _DIRECTIONS), "sendrecv")
    used = [line.text for line in session if line.name not in {_CANDIDATE, *_DIRECTIONS}]
    for section in sections:
        used += _used_of_section(section, direction)
    return "\r\n".join([VERSION, *filter(None, used), ""])


def _read(line: str) -> Line:
    """Raises LineError."""
    if line.startswith(f"a={_CANDIDATE}:"):
        return Line(_CANDIDATE, {}, line)
    try:
        return read_line(line)
    except LineError as error:
        shown = "".join(character if character.isprintable() else "?" for character in line[:100])
        raise LineError(f"{shown}: {error}") from None


def _sections(lines: Iterable[Line]) -> list[list[Line]]:
    """The session's lines first, then each media section's."""
    sections: list[list[Line]] = [[]]
    for line in lines:
        if line.name == "m=":
            sections.append([])
        sections[-1].append(line)
    return sections


def _used_of_section(section: Sequence[Line], direction: str) -> list[str]:
    """``direction`` is the one of a section that has none. Parameters of a codec that nobody names, and extensions whose ids
    are still to be agreed on, are of no use.
    """
    mapped = {int(line.fields["payload_type"]) for line in section if line.name == "rtpmap"}
    used = []
    for line in section:
        is_of_no_codec = line.name == "fmtp" and int(line.fields["payload_type"]) not in mapped
        if not is_of_no_codec and not (line.name == "extmap" and int(line.fields["id"]) > MAX_EXTENSION_ID):
            used.append(line.text)
    if section[0].fields["kind"] != "application" and not any(line.name in _DIRECTIONS for line in section):
        used.append(f"a={direction}")
    return used
