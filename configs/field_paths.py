"""Which fields the configuration has, by the paths that errors name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, get_args

from pydantic import BaseModel

from ithaka.configs.names import nearest

Path = Sequence[int | str]


def fields_at(section: type[BaseModel], path: Path) -> tuple[str, ...]:
    """Names of the fields of the section at ``path``, sorted; none where there is no section."""
    found: Any = section
    for part in path:
        if isinstance(part, int):
            found = next(iter(get_args(_without_none(found))), None)
        elif _is_section(found) and part in found.model_fields:
            found = _without_none(found.model_fields[part].annotation)
        else:
            return ()
    return tuple(sorted(found.model_fields)) if _is_section(found) else ()


def suggestion(section: type[BaseModel], path: Path) -> str:
    """What an unknown field at ``path`` was meant to be, to follow "no such field"; names those that are known there."""
    *above, name = path
    known = fields_at(section, above)
    near = nearest(str(name), known)
    if near is None:
        # A field of that name may be at home elsewhere.
        elsewhere = [place for place in _all_fields(section, "") if place.rpartition(".")[2] == name]
        near = elsewhere[0] if len(elsewhere) == 1 else None
    meant = "" if near is None else f"; did you mean {near}?"
    return f"{meant} Known here: {', '.join(known)}" if meant else f"; known here: {', '.join(known)}"


def _all_fields(section: type[BaseModel], prefix: str) -> Iterator[str]:
    for name, field in section.model_fields.items():
        yield f"{prefix}{name}"
        inner = _without_none(field.annotation)
        if _is_section(inner):
            yield from _all_fields(inner, f"{prefix}{name}.")


def _without_none(annotation: Any) -> Any:
    """Of ``X | None``: X."""
    arguments = get_args(annotation)
    if type(None) in arguments:
        return next(argument for argument in arguments if argument is not type(None))
    return annotation


def _is_section(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)
