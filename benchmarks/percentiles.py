"""Percentiles as text, for a benchmark's row."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def percentiles(values: Sequence[float]) -> str:
    """``p50 …, p95 …, p99 …`` with three significant digits or so."""
    return ", ".join(
        f"p{rank} {value:.3g}" for rank, value in zip((50, 95, 99), np.percentile(values, (50, 95, 99)), strict=True)
    )
