"""The face between a session and whatever carries it to the user. A carrier moves messages and decides nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from ithaka.server.session.messages import ClientMessage, ServerMessage
from ithaka.workers.contract import PacketHeader


@dataclass(frozen=True, slots=True)
class FrameToSend:
    """``decode_only``: sent again so that a decoder can start; not to be shown or counted. ``age_ms``: since generation."""

    header: PacketHeader
    payload: bytes
    decode_only: bool
    age_ms: int


class TransportLost(Exception):
    """The other side is gone."""


class Transport(Protocol):
    """One connection. ``send`` and ``send_frame`` wait while the carrier's own buffer is full; nothing is queued here."""

    async def receive(self) -> ClientMessage:
        """The next message. Raises TransportLost, or ProtocolViolation when it is none."""
        ...

    async def send(self, message: ServerMessage) -> None:
        """Raises TransportLost."""
        ...

    async def send_frame(self, frame: FrameToSend) -> None:
        """Raises TransportLost."""
        ...

    async def close(self, code: int) -> None:
        """With one of the protocol's close codes. Never raises."""
        ...
