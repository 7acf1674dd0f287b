"""Two stages decode the same latents; whether they agree, frame by frame."""

from __future__ import annotations

from collections.abc import Callable

import structlog

from ithaka.server.engine_client import FramesCompared
from ithaka.workers.stages.contract import FramesDigested

_MAX_WAITING = 1024
"""Chunks that one stage has told of and the other has not; the oldest is forgotten then, as one that was left out."""

_log = structlog.get_logger()


class FrameComparison:
    """Of one model. The stages tell in any order, and one of them may leave chunks out."""

    def __init__(self, model: str, on_compared: Callable[[FramesCompared], None]) -> None:
        self._model = model
        self._on_compared = on_compared
        self._waiting: dict[tuple[str, int], tuple[str, FramesDigested]] = {}

    def add(self, stage: str, report: FramesDigested) -> None:
        """What ``stage`` decoded. A difference is logged."""
        key = (report.session_id, report.first_seq)
        other, told = self._waiting.pop(key, (stage, report))
        if other == stage:
            self._waiting[key] = (stage, report)
            if len(self._waiting) > _MAX_WAITING:
                del self._waiting[next(iter(self._waiting))]
            return
        num_frames = max(len(told.digests), len(report.digests))
        num_equal = sum(ours == theirs for ours, theirs in zip(told.digests, report.digests, strict=False))
        if num_equal < num_frames:
            _log.error(
                "frames.differ",
                model=self._model,
                session=report.session_id,
                first_seq=report.first_seq,
                frames=num_frames,
                different=num_frames - num_equal,
                stages=sorted((other, stage)),
            )
        self._on_compared(FramesCompared(self._model, report.session_id, num_equal, num_frames - num_equal))
