"""The face between the streaming runtime and a model family: what to compute, never when or for whom.

A family is pure over tensors and its own session memory. It opens no socket, reads no clock, knows no client. Every rank of
a group calls the same methods with the same arguments in the same order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from ithaka.workers.contract import MODEL_LOAD_FAILED

if TYPE_CHECKING:
    import torch

    from ithaka.comm_ext.ulysses.communicator import UlyssesCommunicator


@dataclass(frozen=True, slots=True)
class FamilySpec:
    """What a model asks of the runtime and tells its clients. Sizes in pixels, rates in frames per second."""

    model: str
    family: str
    width: int
    height: int
    fps: int
    chunk_frames: int
    """Frames that one step yields."""
    session_memory_bytes: int
    """Device bytes that one session keeps on one rank between its steps."""
    controls: tuple[str, ...] = ()
    """Names of the keys the model obeys, e.g. ``("KeyW", "ArrowLeft")`` (KeyboardEvent.code)."""
    takes_prompt: bool = False
    takes_pointer: bool = False
    weights: str = ""
    """Where the weights come from, in words: "trained in this repository", "random", "none"."""


@dataclass(frozen=True, slots=True)
class Controls:
    """The coalesced input of one chunk: newest state wins, no press or release is lost."""

    held: frozenset[str] = frozenset()
    """Keys down at the chunk's start, by KeyboardEvent.code."""
    tapped: frozenset[str] = frozenset()
    """Keys that went down and up again since the last chunk was planned."""
    pointer_dx: float = 0.0
    """Pointer motion since the last chunk, in CSS pixels, right positive."""
    pointer_dy: float = 0.0
    """Likewise, down positive."""
    prompt: str | None = None
    """The newest prompt, or None when it did not change since the last chunk."""


@dataclass(frozen=True, slots=True)
class StepInput:
    """One chunk of one session."""

    session_id: str
    chunk: int
    """Index of the chunk in the session, from 0."""
    controls: Controls


class FamilySession(Protocol):
    """A session's memory on one rank; opaque to the runtime."""


class ModelFamily(Protocol):
    """A loaded model on one rank. Errors are raised and reported by the runtime as codes."""

    spec: FamilySpec

    def open_session(self, session_id: str, *, seed: int, prompt: str, options: dict[str, Any]) -> FamilySession:
        """Reserve the session's memory. Raises FamilyInputError when seed, prompt or options are out of range."""
        ...

    def step(self, session: FamilySession, step: StepInput, progress: Callable[[], None]) -> torch.Tensor | None:
        """Compute one chunk on every rank.

        Calls ``progress()`` at least once per forward, so that a hang can be told from work. Noise is a pure function of
        (seed, chunk), whatever the number of ranks.

        Returns on rank 0 the frames as uint8 RGB ``[chunk_frames, height, width, 3]`` (contiguous; on the model's
        device), on other ranks None. A family that makes I420 itself returns uint8 ``[chunk_frames, height * 3 // 2,
        width]`` instead; the shape tells. A first or last chunk may have fewer frames; None on rank 0 says that the
        session has no more, and closes it as "finished".
        """
        ...

    def close_session(self, session: FamilySession) -> None:
        """Free the session's memory. Never raises."""
        ...


class FamilyLoader(Protocol):
    """``load`` of a family's module, named in the registry."""

    def __call__(
        self,
        *,
        model: str,
        options: dict[str, Any],
        device: torch.device,
        rank: int,
        num_ranks: int,
        communicator: UlyssesCommunicator | None,
    ) -> ModelFamily:
        """Load weights, warm up (two chunks of a throw-away session on every rank), return the family.

        ``communicator`` is None for one rank. Raises FamilyLoadError with a message that tells the user what to do.
        """
        ...


class FamilyError(Exception):
    """Base of what a family raises; ``code`` is stable and reaches the client."""

    code = "family_failed"


class FamilyLoadError(FamilyError):
    """Weights missing or corrupt, or a number of ranks that the model can't be split over: another start won't help.

    ``field``: what is to blame in the model's section of the configuration, e.g. ``options.steps``.
    """

    code = MODEL_LOAD_FAILED

    def __init__(self, message: str, *, field: str = "") -> None:
        super().__init__(message)
        self.field = field


class FamilyInputError(FamilyError):
    """A session asked for something outside the model's range."""

    code = "invalid_session_options"
