"""What the labyrinth's family can be told, checked once; no torch, so that a configuration is judged before anything starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ithaka.configs.names import did_you_mean
from ithaka.workers.families.base import FamilyLoadError


class ModelOptions(BaseModel):
    """``ModelSection.options`` of a model of this family."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    weights: Path | None = Field(default=None, strict=False)
    """A folder; None is the model of this package."""
    steps: int | None = None
    """None is what the model's folder says."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"

    @classmethod
    def parse(cls, options: dict[str, Any]) -> Self:
        """Raises FamilyLoadError that names the option."""
        try:
            return cls.model_validate(options)
        except ValidationError as error:
            first = error.errors()[0]
            name = str(first["loc"][0])
            is_unknown = first["type"] == "extra_forbidden"
            told = "is no option of the model" if is_unknown else first["msg"]
            meant = (did_you_mean(name, cls.model_fields) if is_unknown else "") or "."
            raise FamilyLoadError(
                f"the option `{name}`: {told}, got {options[name]!r}{meant} The model takes {', '.join(cls.model_fields)}.",
                field=f"options.{name}",
            ) from error
