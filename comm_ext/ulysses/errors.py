"""What the communicator raises.

UlyssesError                 every error below carries a stable ``code``
├─ UlyssesInputError         the caller's fault: shape, dtype, device, capacity, alias, lease, tag
├─ UlyssesBackendError       the engine asked for can't run here; the message says why
├─ UlyssesClosedError        used after close
└─ UlyssesPeerError          a rank died, stalled, disagreed, refused or left: ``rank`` names the first culprit
"""

from __future__ import annotations

from enum import StrEnum


class UlyssesErrorCode(StrEnum):
    """Stable words for logs, metrics and reports."""

    BAD_ARGUMENT = "ulysses_bad_argument"
    BAD_SHAPE = "ulysses_bad_shape"
    BAD_DTYPE = "ulysses_bad_dtype"
    BAD_DEVICE = "ulysses_bad_device"
    NEEDS_GRADIENT = "ulysses_needs_gradient"
    OVER_CAPACITY = "ulysses_over_capacity"
    ALIASED_OUTPUT = "ulysses_aliased_output"
    LEASE_OVERRUN = "ulysses_lease_overrun"
    BAD_TAG = "ulysses_bad_tag"
    BACKEND_UNAVAILABLE = "ulysses_backend_unavailable"
    CLOSED = "ulysses_closed"
    PEER_DIED = "ulysses_peer_died"
    PEER_TIMED_OUT = "ulysses_peer_timed_out"
    PEER_DISAGREED = "ulysses_peer_disagreed"
    PEER_REFUSED = "ulysses_peer_refused"
    PEER_CLOSED = "ulysses_peer_closed"
    PEER_ABORTED = "ulysses_peer_aborted"


class UlyssesError(Exception):
    """Base of all; ``code`` is stable, the message tells the user what to do."""

    def __init__(self, code: UlyssesErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


class UlyssesInputError(UlyssesError, ValueError):
    """A call that can't be served. If every rank made the same call, the communicator stays usable; else it breaks."""


class UlyssesBackendError(UlyssesError):
    """The engine asked for can't run on this machine."""


class UlyssesClosedError(UlyssesError):
    """The communicator was closed on this rank."""


class UlyssesPeerError(UlyssesError):
    """The communicator is broken, for good, on every rank. ``rank`` is the first culprit."""

    def __init__(self, code: UlyssesErrorCode, rank: int, message: str) -> None:
        super().__init__(code, message)
        self.rank = rank
