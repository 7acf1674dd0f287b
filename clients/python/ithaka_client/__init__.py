"""Client of the Ithaka daemon: sessions, controls, frames as numpy arrays, lossless resume, recording."""

from ithaka_client.api import ModelInfo, SessionInfo
from ithaka_client.client import Client
from ithaka_client.decoder import Frame
from ithaka_client.errors import (
    AccessError,
    ApiError,
    CapacityError,
    ConflictError,
    ConnectFailedError,
    ConnectionLostError,
    DeadlineError,
    DecodeError,
    IthakaError,
    NotFoundError,
    ProtocolError,
    RequestInvalidError,
    ResumeRefusedError,
    StreamError,
    StreamFailedError,
    StreamRefusedError,
    TransportError,
    UsageError,
)
from ithaka_client.recorder import Recorder
from ithaka_client.session import Session
from ithaka_client.stream import Outcome
from ithaka_client.viewer import Viewer

__all__ = [
    "AccessError",
    "ApiError",
    "CapacityError",
    "Client",
    "ConflictError",
    "ConnectFailedError",
    "ConnectionLostError",
    "DeadlineError",
    "DecodeError",
    "Frame",
    "IthakaError",
    "ModelInfo",
    "NotFoundError",
    "Outcome",
    "ProtocolError",
    "Recorder",
    "RequestInvalidError",
    "ResumeRefusedError",
    "Session",
    "SessionInfo",
    "StreamError",
    "StreamFailedError",
    "StreamRefusedError",
    "TransportError",
    "UsageError",
    "Viewer",
]
