"""JSON as everybody reads it alike: UTF-8, every key of an object once, numbers that are numbers."""

from __future__ import annotations

import json
from typing import Any, NoReturn

MAX_TOLD_CHARACTERS = 40
"""Of a key: an error does not repeat what came in."""


def read_json(text: str | bytes) -> Any:
    """Raises ValueError; its message says what is wrong."""
    try:
        decoded = text.decode("utf-8-sig") if isinstance(text, bytes) else text
        return json.loads(decoded, object_pairs_hook=_object, parse_constant=_no_number)
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"{error.msg} (line {error.lineno}, column {error.colno})") from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Which of two would count differs from reader to reader, so neither does."""
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"the key {twice[:MAX_TOLD_CHARACTERS]!r} stands twice in one object")
    return found


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")
