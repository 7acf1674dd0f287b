"""The number that the server puts into every access unit: seq, control id and generation time."""

from __future__ import annotations

from uuid import UUID

FRAME_NUMBER_UUID = UUID("6d1f9c52-7b3e-4f8a-9a41-d3c0e85b27f6")
_NUM_DIGITS = 48


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


def is_key_frame(access_unit: bytes) -> bool:
    """Whether a decoder can begin here: there is a sequence parameter set."""
    at = access_unit.find(b"\x00\x00\x01")
    while 0 <= at < len(access_unit) - 3:
        if access_unit[at + 3] & 0x1F == 7:
            return True
        at = access_unit.find(b"\x00\x00\x01", at + 3)
    return False
