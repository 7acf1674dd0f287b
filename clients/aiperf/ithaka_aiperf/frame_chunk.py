"""A frame, and a session's end, as the text of a chunk."""

from __future__ import annotations

import json
from collections.abc import Sequence

from ithaka_client import Frame, Outcome

IN_PROGRESS = "in_progress"
COMPLETED = "completed"


def frame_chunk(session_id: str, frame: Frame) -> str:
    return _event({"session": session_id, "seq": frame.seq, "control_id": frame.control_id, "age_ms": frame.age_ms})


def outcome_chunk(session_id: str, outcome: Outcome, lost: Sequence[int]) -> str:
    """``lost`` names the frames that the server declared and that did not come."""
    return _event(
        {
            "session": session_id,
            "delivered": outcome.delivered,
            "reason": outcome.reason,
            "last_seq": outcome.last_seq,
            "decoded_count": outcome.decoded_count,
            "lost": list(lost),
        }
    )


def _event(told: dict[str, object]) -> str:
    return f"data: {json.dumps(told)}"
