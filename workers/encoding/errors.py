"""Why a session's stream could not be made. ``code`` is stable and travels in EncoderFailed."""

from __future__ import annotations


class EncodeError(Exception):
    """Base."""

    code = "encode_failed"


class EncoderSizeError(EncodeError):
    """A size or a rate that H.264 4:2:0 can't carry here."""

    code = "encoder_size_unsupported"


class EncoderOpenError(EncodeError):
    """The codec refused its settings."""

    code = "encoder_open_failed"


class EncoderExistsError(EncodeError):
    """OpenEncoder for a session that has one."""

    code = "encoder_exists"


class FrameLayoutError(EncodeError):
    """A message that is not one I420 frame of the session's size."""

    code = "frame_layout_mismatch"


class FrameOrderError(EncodeError):
    """A frame's pts or seq does not grow."""

    code = "frame_out_of_order"


class PacketTooLargeError(EncodeError):
    """An access unit beyond the packet channel's slot."""

    code = "packet_too_large"
