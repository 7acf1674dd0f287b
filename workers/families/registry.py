"""Which module loads which family: a table of our own, and entry points for everybody else's."""

from __future__ import annotations

import importlib
from importlib.metadata import entry_points
from typing import cast

from ithaka.workers.families.base import FamilyLoader, FamilyLoadError

ENTRY_POINT_GROUP = "ithaka.families"
FAMILIES = {
    "labyrinth": "ithaka.workers.families.wan.family:load",
    "synthetic": "ithaka.workers.families.synthetic.family:load",
}


def family_names() -> tuple[str, ...]:
    """Every family that can be named in a configuration, sorted."""
    return tuple(sorted({*FAMILIES, *(point.name for point in entry_points(group=ENTRY_POINT_GROUP))}))


def resolve(family: str) -> FamilyLoader:
    """The family's loader; its module is imported only now. Raises FamilyLoadError for an unknown or broken one."""
    try:
        if family in FAMILIES:
            module, _, attribute = FAMILIES[family].partition(":")
            return cast(FamilyLoader, getattr(importlib.import_module(module), attribute))
        for point in entry_points(group=ENTRY_POINT_GROUP, name=family):
            return cast(FamilyLoader, point.load())
    except (ImportError, AttributeError) as error:
        raise FamilyLoadError(f"the family {family!r} can't be imported: {error}") from error
    raise FamilyLoadError(f"no family is named {family!r}; there are: {', '.join(family_names())}")
