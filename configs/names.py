"""What a mistyped name was meant to be."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The one of ``known`` that looks most like ``name``, whatever the case of its letters; None where none does."""
    as_written = {candidate.lower(): candidate for candidate in known}
    found = difflib.get_close_matches(name.lower(), as_written, n=1)
    return as_written[found[0]] if found else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """To follow "no such …": ``; did you mean X?``, or nothing."""
    found = nearest(name, known)
    return "" if found is None else f"; did you mean {found}?"
