"""What ``ithaka generate`` plays: key presses, pointer motion and prompts at given frames."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError

from ithaka.configs.field_paths import suggestion
from ithaka.configs.names import did_you_mean
from ithaka.configs.numbers import no_truth_value
from ithaka.configs.yaml_file import YamlFileError, read_yaml
from ithaka.workers.contract import ModelDescription

KeyCode = Annotated[str, Field(pattern=r"^[A-Za-z0-9]{1,32}$")]
Number = Annotated[float, BeforeValidator(no_truth_value)]


class ScriptError(Exception):
    """The script can't be played. The text names the file, the entry, and what was expected, one problem a line."""


class ScriptEntry(BaseModel):
    """Input that takes effect from frame ``at`` (0 is the first) on."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    at: Annotated[int, BeforeValidator(no_truth_value)] = Field(ge=0)
    press: tuple[KeyCode, ...] = ()
    release: tuple[KeyCode, ...] = ()
    pointer_dx: Number = 0.0
    pointer_dy: Number = 0.0
    prompt: str | None = Field(default=None, max_length=2000)


@dataclass(frozen=True, slots=True)
class ControlScript:
    """Entries in the file's order."""

    source: str
    entries: tuple[ScriptEntry, ...] = ()

    def by_frame(self) -> dict[int, tuple[ScriptEntry, ...]]:
        return {frame: tuple(group) for frame, group in groupby(sorted(self.entries, key=_at), key=_at)}

    def require_length(self, num_frames: int) -> None:
        """Raises ScriptError for entries that a clip of ``num_frames`` does not reach."""
        self._require(
            f"{index}.at: {entry.at} comes after the clip's last frame, {num_frames - 1}; make the clip longer with --frames"
            for index, entry in enumerate(self.entries)
            if entry.at >= num_frames
        )

    def require_model(self, model: ModelDescription, num_frames: int) -> None:
        """Raises ScriptError for entries of which a clip of this model would show nothing."""
        self._require(self._refusals(model, num_frames))

    def _refusals(self, model: ModelDescription, num_frames: int) -> Iterator[str]:
        last_start = (num_frames - 1) // model.chunk_frames * model.chunk_frames
        for index, entry in enumerate(self.entries):
            yield from (f"{index}.{refusal}" for refusal in _refusals_of(entry, model))
            if entry.at > last_start:
                yield (
                    f"{index}.at: {entry.at} comes after the start of the last chunk, frame {last_start}, where input is taken "
                    f"last; the last frame is {num_frames - 1} and a chunk has {model.chunk_frames}"
                )

    def _require(self, refusals: Iterator[str]) -> None:
        if told := "\n".join(f"{self.source}: {refusal}" for refusal in refusals):
            raise ScriptError(told)


def read_script(path: Path) -> ControlScript:
    """YAML or JSON, a list of entries. Raises ScriptError."""
    try:
        return ControlScript(str(path), _ENTRIES.validate_python(_nothing_is_empty(read_yaml(path))))
    except OSError as error:
        raise ScriptError(f"{path}: {error.strerror}") from error
    except YamlFileError as error:
        raise ScriptError(str(error)) from error
    except ValidationError as error:
        detail = error.errors()[0]
        where = ".".join(str(part) for part in detail["loc"])
        is_unknown = detail["type"] == "extra_forbidden"
        told = f"no such field{suggestion(ScriptEntry, detail['loc'][1:])}" if is_unknown else detail["msg"]
        raise ScriptError(
            f"{path}: {where or 'script'}: {told.removeprefix('Value error, ')}; "
            "an entry looks like {at: 12, press: [KeyW], release: [KeyA]}"
        ) from error


def _refusals_of(entry: ScriptEntry, model: ModelDescription) -> Iterator[str]:
    """What the model does not take, field by field."""
    for field, keys in (("press", entry.press), ("release", entry.release)):
        for position, key in enumerate(keys):
            if key not in model.controls:
                known = f"{', '.join(model.controls) or 'none'}{did_you_mean(key, model.controls)}"
                yield f"{field}.{position}: model {model.model!r} has no key {key!r}; its keys are: {known}"
    if entry.prompt is not None and not model.takes_prompt:
        yield f"prompt: model {model.model!r} takes no prompt"
    if (entry.pointer_dx or entry.pointer_dy) and not model.takes_pointer:
        yield f"{'pointer_dx' if entry.pointer_dx else 'pointer_dy'}: model {model.model!r} takes no pointer"


_ENTRIES = TypeAdapter(tuple[ScriptEntry, ...])


def _nothing_is_empty(value: Any) -> Any:
    return () if value is None else value


def _at(entry: ScriptEntry) -> int:
    return entry.at
