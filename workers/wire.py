"""``contract`` as bytes: msgpack of ``[version, tag, fields]``, one message a datagram.

The tag table is written by hand: a tag once given is never reused, and nothing is looked up by a name from outside.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgpack
from pydantic import ConfigDict, TypeAdapter, ValidationError, with_config

from ithaka.workers import contract
from ithaka.workers.stages import contract as stage_contract

VERSION = 1
MAX_MESSAGE_BYTES = 128 * 1024
"""Below the default socket buffer, so that one datagram always fits."""

_TAGS: dict[int, type] = {
    1: contract.AttachFrames,
    2: contract.StartSession,
    3: contract.ApplyControl,
    4: contract.GrantFrames,
    5: contract.EndSession,
    6: contract.Shutdown,
    7: contract.ConfigureRank,
    16: contract.WorkerReady,
    17: contract.Heartbeat,
    18: contract.SessionStarted,
    19: contract.StepCompleted,
    20: contract.SessionEnded,
    21: contract.WorkerFailed,
    22: stage_contract.FramesDigested,
    32: contract.OpenOnRank,
    33: contract.StepPlan,
    34: contract.CloseOnRank,
    35: contract.StopRank,
    36: stage_contract.AttachLatents,
    37: stage_contract.OpenOnStage,
    38: stage_contract.CloseOnStage,
    39: stage_contract.StopStage,
    48: contract.AttachPackets,
    49: contract.DetachFrames,
    50: contract.OpenEncoder,
    51: contract.RequestKeyFrame,
    52: contract.CloseEncoder,
    53: contract.ConfigureEncode,
    54: contract.SetBitrate,
    55: contract.OpenVp8,
    56: contract.CloseVp8,
    64: contract.EncodeReady,
    65: contract.EncoderOpened,
    66: contract.EncoderFailed,
    67: contract.FramesDrained,
    80: contract.FrameHeader,
    81: contract.PacketHeader,
    82: stage_contract.LatentsHeader,
}
_TAG_OF = {kind: tag for tag, kind in _TAGS.items()}
_ADAPTERS: dict[type, TypeAdapter[Any]] = {kind: TypeAdapter(with_config(ConfigDict(extra="forbid"))(kind)) for kind in _TAG_OF}

Message = contract.Command | contract.Report | contract.RankOrder | contract.Header | stage_contract.StageMessage
M = TypeVar("M")


class WireError(ValueError):
    """Bytes that are not a message of this version, or a message too large for one datagram."""


def encode(message: Message) -> bytes:
    """Raises WireError when the message is larger than MAX_MESSAGE_BYTES or holds what msgpack can't carry."""
    kind = type(message)
    try:
        data: bytes = msgpack.packb([VERSION, _TAG_OF[kind], _ADAPTERS[kind].dump_python(message)], use_bin_type=True)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise WireError(f"{kind.__name__} can't be sent: {error}") from error
    if len(data) > MAX_MESSAGE_BYTES:
        raise WireError(f"{kind.__name__} takes {len(data)} bytes; at most {MAX_MESSAGE_BYTES} fit")
    return data


def decode(data: bytes) -> Message:
    """The message in ``data``. Raises WireError for anything that ``encode`` can't have made."""
    if len(data) > MAX_MESSAGE_BYTES:
        raise WireError(f"{len(data)} bytes; at most {MAX_MESSAGE_BYTES} fit")
    try:
        version, tag, fields = msgpack.unpackb(data, raw=False, strict_map_key=True)
        if version != VERSION:
            raise WireError(f"version {version!r}; this side speaks {VERSION}")
        message: Message = _ADAPTERS[_TAGS[tag]].validate_python(fields)
        return message
    except WireError:
        raise
    except (KeyError, TypeError, ValueError, ValidationError, msgpack.UnpackException, RecursionError) as error:
        raise WireError(f"not a message: {error}") from error


def decode_as(kind: type[M], data: bytes) -> M:
    """``decode``, for a place that takes one kind only. Raises WireError for another."""
    message = decode(data)
    if not isinstance(message, kind):
        raise WireError(f"expected {kind.__name__}, got {type(message).__name__}")
    return message
