"""The RFC 6381 string of an H.264 stream, read from its sequence parameter set."""

from __future__ import annotations

_START_CODE = b"\x00\x00\x01"
_NAL_SPS = 7


def codec_string(annex_b: bytes) -> str:
    """``avc1.PPCCLL`` (profile, constraint flags, level) of the first SPS in ``annex_b``.

    Raises ValueError when there is none.
    """
    at = annex_b.find(_START_CODE)
    while at >= 0:
        nal = annex_b[at + len(_START_CODE) : at + len(_START_CODE) + 4]
        if len(nal) == 4 and nal[0] & 0x1F == _NAL_SPS:
            return f"avc1.{nal[1:].hex().upper()}"
        at = annex_b.find(_START_CODE, at + len(_START_CODE))
    raise ValueError("no sequence parameter set in the stream's headers")
