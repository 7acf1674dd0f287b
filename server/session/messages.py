"""The messages of protocol version 1, whatever carries them. See clients/protocol/README.md."""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from ithaka.server.errors import ProtocolViolation
from ithaka.server.json_text import MAX_TOLD_CHARACTERS, read_json
from ithaka.server.session.events import State
from ithaka.workers.contract import Pixels

MAX_KEYS = 32
"""Of one control message; more fingers than anybody has."""
MAX_PROMPT_CHARACTERS = 4096
MAX_SEQ = 2**53 - 1
"""Largest integer that JavaScript counts exactly."""

Seq = Annotated[int, Field(ge=0, le=MAX_SEQ)]
FrameSeq = Annotated[int, Field(ge=1, le=MAX_SEQ)]
KeyCode = Annotated[str, Field(min_length=1, max_length=32, pattern=r"^[A-Za-z0-9]+$")]
Keys = Annotated[tuple[KeyCode, ...], Field(max_length=MAX_KEYS)]
Motion = Annotated[float, Field(ge=-100_000, le=100_000, allow_inf_nan=False)]
Role = Literal["controller", "viewer"]


class Message(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


# -- server → client ---------------------------------------------------------------------------------------------------


class Hello(Message):
    type: Literal["hello"] = "hello"
    version: Literal[1] = 1
    session: str
    stream: str
    role: Role
    next_seq: FrameSeq
    window: int
    codec: str
    width: int
    height: int
    fps: int
    time_base: tuple[Literal[1], int]
    pixels: Pixels
    model: str
    controls: tuple[str, ...]
    takes_prompt: bool
    takes_pointer: bool


class StateChanged(Message):
    """``delivered`` stands in the last one only."""

    type: Literal["state"] = "state"
    state: State
    reason: str = ""
    delivered: bool | None = None


class Ping(Message):
    type: Literal["ping"] = "ping"
    id: int


class Eos(Message):
    type: Literal["eos"] = "eos"
    last_seq: Seq
    count: Seq
    reason: str
    retryable: bool


class ErrorRaised(Message):
    type: Literal["error"] = "error"
    code: str
    message: str
    retryable: bool


class Numbered(Message):
    """On a track whose codec has no room for numbers: which frame it is that is shown at this RTP time (32 bits, 90 kHz).

    ``generated_us``: CLOCK_MONOTONIC of the server, in microseconds.
    """

    type: Literal["numbered"] = "numbered"
    seq: FrameSeq
    control_id: Seq
    generated_us: Seq
    rtp_timestamp: Annotated[int, Field(ge=0, lt=2**32)]


ServerMessage = Hello | StateChanged | Ping | Eos | ErrorRaised | Numbered


# -- client → server ---------------------------------------------------------------------------------------------------


class Resume(Message):
    type: Literal["resume"]
    stream: Annotated[str, Field(max_length=64)]
    next_seq: FrameSeq


class Ack(Message):
    type: Literal["ack"]
    received_through: Seq
    decoded_through: Seq


class ControlBody(Message):
    """What a user did since the last one."""

    pressed: Keys = ()
    released: Keys = ()
    pointer_dx: Motion = 0.0
    pointer_dy: Motion = 0.0
    prompt: Annotated[str, Field(max_length=MAX_PROMPT_CHARACTERS)] | None = None


class Control(ControlBody):
    type: Literal["control"]
    control_id: FrameSeq


class Pause(Message):
    type: Literal["pause"]


class Play(Message):
    type: Literal["play"]


class End(Message):
    type: Literal["end"]


class Fin(Message):
    type: Literal["fin"]
    decoded_count: Seq
    last_seq: Seq


class Pong(Message):
    type: Literal["pong"]
    id: Seq


ClientMessage = Resume | Ack | Control | Pause | Play | End | Fin | Pong

_CLIENT: TypeAdapter[ClientMessage] = TypeAdapter(Annotated[ClientMessage, Field(discriminator="type")])
_TYPES = ", ".join(get_args(kind.model_fields["type"].annotation)[0] for kind in get_args(ClientMessage))
_SERVER: TypeAdapter[ServerMessage] = TypeAdapter(Annotated[ServerMessage, Field(discriminator="type")])


def parse_client_message(text: str | bytes) -> ClientMessage:
    """One JSON object → message. Raises ProtocolViolation with code ``message_invalid``."""
    try:
        message = _CLIENT.validate_json(text, strict=True)
        read_json(text)
        return message
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        path = ".".join(str(part)[:MAX_TOLD_CHARACTERS] for part in first["loc"])
        words = f"type: it is none of {_TYPES}" if first["type"] == "union_tag_invalid" else first["msg"]
        raise ProtocolViolation("message_invalid", f"{path or 'message'}: {words}") from None
    except ValueError as error:
        raise ProtocolViolation("message_invalid", f"message: {error}") from None


def write_message(message: ServerMessage) -> str:
    """As JSON. ``delivered`` is left out where it says nothing."""
    return message.model_dump_json(exclude_none=True)


def json_schemas() -> dict[str, Any]:
    """One JSON Schema for each direction."""
    return {
        "client-messages": _CLIENT.json_schema(),
        "server-messages": _SERVER.json_schema(mode="serialization"),
    }
