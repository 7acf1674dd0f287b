"""What the synthetic family can be told, checked once."""

from __future__ import annotations

from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from ithaka.configs.field_paths import suggestion
from ithaka.workers.families.base import FamilyInputError, FamilyLoadError
from ithaka.workers.families.synthetic.barcode import MIN_HEIGHT, MIN_WIDTH


class ModelOptions(BaseModel):
    """``ModelSection.options`` of a synthetic model. Chunks count from 0."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    width: int = Field(default=320, ge=MIN_WIDTH, le=4096, multiple_of=2)
    height: int = Field(default=192, ge=MIN_HEIGHT, le=4096, multiple_of=2)
    fps: int = Field(default=16, ge=1, le=240)
    chunk_frames: int = Field(default=1, ge=1, le=64)
    step_ms: float = Field(default=0, ge=0, le=60_000)
    """Pretended work of each chunk, with progress at least every 50 ms."""
    decode_ms: float = Field(default=0, ge=0, le=60_000)
    """Likewise of its decoding."""
    frames: int | None = Field(default=None, ge=1)
    """The session is finished after so many."""
    fail_at_chunk: int | None = Field(default=None, ge=0)
    """The step raises, as a broken model would."""
    refuse_at_chunk: int | None = Field(default=None, ge=0)
    """The step refuses its input."""
    hang_at_chunk: int | None = Field(default=None, ge=0)
    """The step neither ends nor makes progress."""
    fail_load: bool = False
    """Loading fails, each time."""

    @classmethod
    def parse(cls, options: dict[str, Any]) -> Self:
        """Raises FamilyLoadError that names the option."""
        try:
            return cls.model_validate(options)
        except ValidationError as error:
            field = ".".join(("options", *(str(part) for part in error.errors()[0]["loc"])))
            raise FamilyLoadError(f"options of the synthetic model: {_first(error, cls)}", field=field) from error

    @model_validator(mode="after")
    def _chunk_fits(self) -> Self:
        if self.width * self.height * self.chunk_frames > 1 << 28:
            raise ValueError("a chunk may have 2**28 pixels in all; lower width, height or chunk_frames")
        return self


class SessionOptions(BaseModel):
    """``options`` of a session: the only ones a client may choose."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    frames: int | None = Field(default=None, ge=1)
    """The session is finished after so many, instead of what the model says."""

    @classmethod
    def parse(cls, options: dict[str, Any]) -> Self:
        """Raises FamilyInputError that names the option."""
        try:
            return cls.model_validate(options)
        except ValidationError as error:
            raise FamilyInputError(f"options: {_first(error, cls)}") from error


def _first(error: ValidationError, options: type[BaseModel]) -> str:
    first = error.errors()[0]
    field = ".".join(str(part) for part in first["loc"])
    told = f"no such option{suggestion(options, first['loc'])}" if first["type"] == "extra_forbidden" else str(first["msg"])
    return f"{field}: {told}" if field else told
