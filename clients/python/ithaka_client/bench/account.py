"""What one session got, against what the server declared. Pure: every call takes the time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ithaka_client.bench.plan import Arrival

STALL_PERIODS = 3
"""Frame periods without a frame, from which on it is a stall; a chunk comes at once, so it counts from chunk to chunk."""
_MAX_LISTED = 100
"""Lost frames that a result names; all are counted."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Milliseconds. None where nothing was measured."""

    p50: float | None
    p95: float | None
    p99: float | None
    largest: float | None


@dataclass(frozen=True, slots=True)
class SessionResult:
    """``declared_frames`` from the stream's end; ``lost`` names the first hundred that never came."""

    session: str
    declared_frames: int
    received_frames: int
    dropped_frames: int
    lost_frames: int
    lost: tuple[int, ...]
    fps: float
    first_frame_ms: float | None
    generated_to_decoded_ms: Spread
    control_to_photon_ms: Spread
    stalls: int
    stalled_ms: float
    error: str | None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


class Account:
    """``fps``: the model's; ``chunk_frames`` come together. ``begun_ns``: when the session was asked for."""

    def __init__(self, session: str, *, fps: int, chunk_frames: int, begun_ns: int) -> None:
        self._session = session
        self._stall_ns = int((chunk_frames + STALL_PERIODS - 1) * 1e9 / fps)
        self._begun_ns = begun_ns
        self._seqs: set[int] = set()
        self._first_ns: int | None = None
        self._last_ns = 0
        self._delays_ms: list[float] = []
        self._reactions_ms: list[float] = []
        self._waiting_controls: dict[int, int] = {}
        self._stalls = 0
        self._stalled_ns = 0

    @property
    def decoded_through(self) -> int:
        return max(self._seqs, default=0)

    @property
    def num_frames(self) -> int:
        return len(self._seqs)

    @property
    def delays_ms(self) -> Sequence[float]:
        return self._delays_ms

    def control_sent(self, control_id: int, sent_ns: int) -> None:
        self._waiting_controls[control_id] = sent_ns

    def frame_arrived(self, arrival: Arrival) -> None:
        if arrival.seq in self._seqs:
            return
        self._seqs.add(arrival.seq)
        if self._first_ns is None:
            self._first_ns = arrival.arrived_ns
        elif (gap_ns := arrival.arrived_ns - self._last_ns) > self._stall_ns:
            self._stalls += 1
            self._stalled_ns += gap_ns
        self._last_ns = arrival.arrived_ns
        self._delays_ms.append((arrival.arrived_ns - arrival.generated_ns) / 1e6)
        for control_id in [known for known in self._waiting_controls if known <= arrival.control_id]:
            self._reactions_ms.append((arrival.arrived_ns - self._waiting_controls.pop(control_id)) / 1e6)

    def result(self, *, declared_frames: int, dropped_frames: int, error: str | None) -> SessionResult:
        lost = [seq for seq in range(1, declared_frames + 1) if seq not in self._seqs]
        span_s = (self._last_ns - self._first_ns) / 1e9 if self._first_ns is not None else 0.0
        return SessionResult(
            session=self._session,
            declared_frames=declared_frames,
            received_frames=len(self._seqs),
            dropped_frames=dropped_frames,
            lost_frames=len(lost),
            lost=tuple(lost[:_MAX_LISTED]),
            fps=(len(self._seqs) - 1) / span_s if span_s > 0 else 0.0,
            first_frame_ms=None if self._first_ns is None else (self._first_ns - self._begun_ns) / 1e6,
            generated_to_decoded_ms=spread(self._delays_ms),
            control_to_photon_ms=spread(self._reactions_ms),
            stalls=self._stalls,
            stalled_ms=self._stalled_ns / 1e6,
            error=error,
        )


def spread(values_ms: Sequence[float]) -> Spread:
    """Nearest rank, so that every number was really measured."""
    ordered = sorted(values_ms)
    if not ordered:
        return Spread(None, None, None, None)

    def rank(share: float) -> float:
        return ordered[max(0, math.ceil(share * len(ordered)) - 1)]

    return Spread(rank(0.50), rank(0.95), rank(0.99), ordered[-1])
