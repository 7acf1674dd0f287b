"""Which module loads which family: a table of our own, and entry points for everybody else's."""

from __future__ import annotations

import importlib
from functools import reduce
from importlib.metadata import entry_points
from typing import Any, cast

from ithaka.workers.families.base import FamilyLoader, FamilyLoadError
from ithaka.workers.families.stages import DecoderLoader, DenoiserLoader, StageLoaders

ENTRY_POINT_GROUP = "ithaka.families"
FAMILIES = {
    "labyrinth": "ithaka.workers.families.wan.family:load",
    "synthetic": "ithaka.workers.families.synthetic.family:load",
}

OPTIONS = {
    "labyrinth": "ithaka.workers.families.wan.options",
    "synthetic": "ithaka.workers.families.synthetic.options",
}
"""Modules without torch whose ``ModelOptions.parse`` judges a model's options before anything starts."""

WEIGHTS_CHECKS = {"labyrinth": "ithaka.workers.families.wan.weights_check"}
"""Modules whose ``check_weights(options, num_ranks)`` looks a model's weights over; families without any need none."""

STAGE_LOADERS = ("load_denoiser", "load_decoder")
"""What the module of a family that can be staged offers beside its loader."""


def family_names() -> tuple[str, ...]:
    """Every family that can be named in a configuration, sorted."""
    return tuple(sorted({*FAMILIES, *(point.name for point in entry_points(group=ENTRY_POINT_GROUP))}))


def check_options(family: str, options: dict[str, Any]) -> None:
    """Raises FamilyLoadError that names the option; families from elsewhere are asked when they are loaded."""
    if family in OPTIONS:
        importlib.import_module(OPTIONS[family]).ModelOptions.parse(options)


def check_weights(family: str, options: dict[str, Any], num_ranks: int) -> str:
    """What the model's weights are, in words. Loads torch where there are weights. Raises FamilyLoadError."""
    if family in WEIGHTS_CHECKS:
        return str(importlib.import_module(WEIGHTS_CHECKS[family]).check_weights(options, num_ranks))
    return "none needed" if family in FAMILIES else "its family checks them when it is loaded"


def resolve(family: str) -> FamilyLoader:
    """The family's loader; its module is imported only now. Raises FamilyLoadError for an unknown or broken one."""
    module, attribute = _place_of(family)
    return cast(FamilyLoader, _imported(family, module, attribute))


def resolve_stages(family: str) -> StageLoaders:
    """The loaders of the family's two stages. Raises FamilyLoadError, also for a family that has none."""
    module, attribute = _place_of(family)
    _imported(family, module, attribute)
    loaders = [getattr(importlib.import_module(module), name, None) for name in STAGE_LOADERS]
    if None in loaders:
        raise FamilyLoadError(
            f"the family {family!r} can't be split into stages: its module has no {' and '.join(STAGE_LOADERS)}; "
            "remove `stages` and set `ranks`",
            field="stages",
        )
    return StageLoaders(*cast("tuple[DenoiserLoader, DecoderLoader]", loaders))


def _place_of(family: str) -> tuple[str, str]:
    """Module and attribute of the loader."""
    if family in FAMILIES:
        module, _, attribute = FAMILIES[family].partition(":")
        return module, attribute
    for point in entry_points(group=ENTRY_POINT_GROUP, name=family):
        return point.module, point.attr
    raise FamilyLoadError(f"no family is named {family!r}; there are: {', '.join(family_names())}")


def _imported(family: str, module: str, attribute: str) -> Any:
    try:
        return reduce(getattr, attribute.split("."), importlib.import_module(module))
    except (ImportError, AttributeError) as error:
        raise FamilyLoadError(f"the family {family!r} can't be imported: {error}") from error
