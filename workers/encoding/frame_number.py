"""The frame's number inside its access unit, for receivers that see nothing else of it: an SEI message.

User data unregistered (H.264 D.1.7): our UUID, then seq, control id and generation time (CLOCK_MONOTONIC, nanoseconds) as
sixteen hexadecimal digits each. Neither holds two zero bytes in a row, so no byte has to be escaped.
"""

from __future__ import annotations

from uuid import UUID

FRAME_NUMBER_UUID = UUID("6d1f9c52-7b3e-4f8a-9a41-d3c0e85b27f6")
_START_CODE = b"\x00\x00\x00\x01"
_NAL_SEI = 6
_USER_DATA_UNREGISTERED = 5
_NUM_DIGITS = 3 * 16
_HEADER = _START_CODE + bytes((_NAL_SEI, _USER_DATA_UNREGISTERED, 16 + _NUM_DIGITS)) + FRAME_NUMBER_UUID.bytes
_RBSP_END = b"\x80"
_SLICES = (1, 5)


def with_frame_number(access_unit: memoryview, *, seq: int, control_id: int, generated_ns: int) -> memoryview:
    """A copy of ``access_unit`` (H.264 Annex B) with the numbers in front of its first slice.

    Raises ValueError when there is no slice.
    """
    data = bytes(access_unit)
    at = _first_slice(data)
    digits = f"{seq:016x}{control_id:016x}{generated_ns:016x}".encode()
    return memoryview(b"".join((data[:at], _HEADER, digits, _RBSP_END, data[at:])))


def read_frame_number(access_unit: bytes) -> tuple[int, int, int] | None:
    """seq, control id and generation time; None where the access unit carries none."""
    at = access_unit.find(FRAME_NUMBER_UUID.bytes)
    digits = access_unit[at + 16 : at + 16 + _NUM_DIGITS]
    if at < 0 or len(digits) < _NUM_DIGITS:
        return None
    seq, control_id, generated_ns = (int(digits[start : start + 16], 16) for start in (0, 16, 32))
    return seq, control_id, generated_ns


def _first_slice(data: bytes) -> int:
    """Where the start code of the first slice begins."""
    at = data.find(b"\x00\x00\x01")
    while 0 <= at < len(data) - 3:
        if data[at + 3] & 0x1F in _SLICES:
            return at - 1 if at and data[at - 1] == 0 else at
        at = data.find(b"\x00\x00\x01", at + 3)
    raise ValueError("the access unit has no slice")
