"""A frame as bytes: 40 bytes of header in network byte order, then the access unit. See clients/protocol/README.md."""

from __future__ import annotations

import struct

from ithaka.server.transports.base import FrameToSend

HEADER = struct.Struct("!BBHIQQQII")
KIND_FRAME = 1
FLAG_KEY = 1
FLAG_DECODE_ONLY = 2
_MAX_U32 = 2**32 - 1


def pack_frame(frame: FrameToSend) -> bytes:
    header = frame.header
    flags = (FLAG_KEY if header.key else 0) | (FLAG_DECODE_ONLY if frame.decode_only else 0)
    return (
        HEADER.pack(
            KIND_FRAME,
            flags,
            HEADER.size,
            len(frame.payload),
            header.seq,
            header.pts,
            header.control_id,
            header.chunk,
            min(frame.age_ms, _MAX_U32),
        )
        + frame.payload
    )
