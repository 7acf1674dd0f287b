"""A run in numbers for machines, in a table for people, and as a picture."""

from __future__ import annotations

import json
import math
import os
import platform
from dataclasses import asdict
from typing import Any

from ithaka_client.bench.account import Spread, spread
from ithaka_client.bench.load import RunResult

_WIDTH, _HEIGHT, _MARGIN = 640, 320, 48
_MOST_STEPS = 5
"""Of the axis."""


def as_json(result: RunResult) -> str:
    """The plan (without the key), the machine, each session, and all together."""
    plan = {name: value for name, value in asdict(result.plan).items() if name != "api_key"}
    document = {"plan": plan, "machine": _machine(), "sessions": [known.as_dict() for known in result.sessions]}
    return json.dumps({**document, "total": _total(result)}, indent=2)


def as_table(result: RunResult) -> str:
    """One line for each session, one for all; milliseconds are p50 / p95 / p99."""
    head = (
        "session",
        "declared",
        "received",
        "dropped",
        "lost",
        "fps",
        "first ms",
        "generated→decoded",
        "control→photon",
        "stalls",
    )
    rows = [head]
    for number, known in enumerate(result.sessions):
        first = "–" if known.first_frame_ms is None else f"{known.first_frame_ms:.0f}"
        rows.append(
            (
                f"{number}",
                f"{known.declared_frames}",
                f"{known.received_frames}",
                f"{known.dropped_frames}",
                f"{known.lost_frames}",
                f"{known.fps:.1f}",
                first,
                _spread(known.generated_to_decoded_ms),
                _spread(known.control_to_photon_ms),
                f"{known.stalls}",
            )
        )
    total = _total(result)
    rows.append(
        (
            "all",
            f"{total['declared_frames']}",
            f"{total['received_frames']}",
            f"{total['dropped_frames']}",
            f"{total['lost_frames']}",
            f"{total['fps']:.1f}",
            "",
            _spread(spread(result.delays_ms)),
            "",
            f"{total['stalls']}",
        )
    )
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    errors = [f"session {number}: {known.error}" for number, known in enumerate(result.sessions) if known.error]
    return "\n".join([*lines, *errors])


def as_svg(result: RunResult) -> str:
    """The share of frames (upwards) that were decoded within so many milliseconds (to the right)."""
    delays = sorted(result.delays_ms)
    ticks_ms = nice_ticks(max(delays[-1] if delays else 0.0, 1.0))
    most_ms = ticks_ms[-1]
    across, up = _WIDTH - 2 * _MARGIN, _HEIGHT - 2 * _MARGIN
    step = max(1, len(delays) // across)
    points = [
        f"{_MARGIN + across * delay / most_ms:.1f},{_HEIGHT - _MARGIN - up * (rank + 1) / len(delays):.1f}"
        for rank, delay in enumerate(delays)
        if rank % step == 0 or rank == len(delays) - 1
    ]
    marks = "".join(
        f'<text x="{_MARGIN + across * tick_ms / most_ms:.0f}" y="{_HEIGHT - _MARGIN + 18}" text-anchor="middle">'
        f"{tick_ms:g} ms</text>"
        for tick_ms in ticks_ms
    ) + "".join(
        f'<text x="{_MARGIN - 8}" y="{_HEIGHT - _MARGIN - up * part / 4 + 4:.0f}" text-anchor="end">{25 * part} %</text>'
        for part in range(5)
    )
    plan = result.plan
    title = f"{plan.num_sessions} × {plan.model}, {plan.transport}, {plan.delivery}: generation to decoded"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" font-size="12">'
        f'<rect width="100%" height="100%" fill="white"/><text x="{_MARGIN}" y="24" font-size="14">{title}</text>'
        f'<path d="M{_MARGIN},{_MARGIN}V{_HEIGHT - _MARGIN}H{_WIDTH - _MARGIN}" fill="none" stroke="black"/>{marks}'
        f'<polyline points="{" ".join(points)}" fill="none" stroke="#0a66c2" stroke-width="2"/></svg>\n'
    )


def nice_ticks(most: float) -> list[float]:
    """From 0 to ``most`` or just beyond, evenly, in at most five steps of 1, 2 or 5 times a power of ten. ``most`` > 0."""
    power = 10.0 ** math.floor(math.log10(most / _MOST_STEPS))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power * _MOST_STEPS >= most)
    return [step * number for number in range(math.ceil(most / step) + 1)]


def _total(result: RunResult) -> dict[str, Any]:
    sessions = result.sessions
    return {
        "declared_frames": sum(known.declared_frames for known in sessions),
        "received_frames": sum(known.received_frames for known in sessions),
        "dropped_frames": sum(known.dropped_frames for known in sessions),
        "lost_frames": sum(known.lost_frames for known in sessions),
        "fps": sum(known.fps for known in sessions),
        "stalls": sum(known.stalls for known in sessions),
        "failed_sessions": sum(known.error is not None for known in sessions),
        "generated_to_decoded_ms": asdict(spread(result.delays_ms)),
    }


def _machine() -> dict[str, Any]:
    return {"cores": os.cpu_count(), "system": platform.platform(), "python": platform.python_version()}


def _spread(known: Spread) -> str:
    if known.p50 is None or known.p95 is None or known.p99 is None:
        return "–"
    return f"{known.p50:.0f} / {known.p95:.0f} / {known.p99:.0f}"
