"""A picture as it travels, with its number: in H.264 the server puts seq, control id and generation time into the stream."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from ithaka_client.errors import ProtocolError

FRAME_NUMBER_UUID = UUID("6d1f9c52-7b3e-4f8a-9a41-d3c0e85b27f6")
_NUM_DIGITS = 48


@dataclass(frozen=True, slots=True)
class AccessUnit:
    """``generated_ns`` is the server's monotonic clock."""

    seq: int
    control_id: int
    generated_ns: int
    is_key: bool
    data: bytes


def numbered_h264(data: bytes) -> AccessUnit:
    """Raises ProtocolError for one without a number."""
    number = read_frame_number(data)
    if number is None:
        raise ProtocolError("a frame carries no number")
    return AccessUnit(*number, is_key_frame(data), data)


def read_frame_number(access_unit: bytes) -> tuple[int, int, int] | None:
    """None where it carries none."""
    at = access_unit.find(FRAME_NUMBER_UUID.bytes)
    digits = access_unit[at + 16 : at + 16 + _NUM_DIGITS]
    if at < 0 or len(digits) < _NUM_DIGITS:
        return None
    try:
        seq, control_id, generated_ns = (int(digits[start : start + 16], 16) for start in (0, 16, 32))
    except ValueError:
        return None
    return seq, control_id, generated_ns


def is_vp8_key_frame(picture: bytes) -> bool:
    """Whether a decoder can begin here: the first bit of the frame tag (RFC 6386, 9.1) is 0."""
    return bool(picture) and not picture[0] & 1


def is_key_frame(access_unit: bytes) -> bool:
    """Whether a decoder can begin here: there is a sequence parameter set."""
    at = access_unit.find(b"\x00\x00\x01")
    while 0 <= at < len(access_unit) - 3:
        if access_unit[at + 3] & 0x1F == 7:
            return True
        at = access_unit.find(b"\x00\x00\x01", at + 3)
    return False
