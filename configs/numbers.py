"""Numbers as YAML and JSON mean them."""

from __future__ import annotations

from typing import Any


def no_truth_value(value: Any) -> Any:
    """``value``; for true and false, which Python counts among the numbers, a ValueError, also where a list holds them."""
    if isinstance(value, bool) or (isinstance(value, list | tuple) and any(isinstance(item, bool) for item in value)):
        raise ValueError("true and false are no values of this field")
    return value
