"""What ``ithaka generate`` plays: key presses, pointer motion and prompts at given frames."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from ithaka.configs.field_paths import suggestion
from ithaka.configs.yaml_file import YamlFileError, read_yaml

KeyCode = Annotated[str, Field(pattern=r"^[A-Za-z0-9]{1,32}$")]


class ScriptError(Exception):
    """The file is no control script. The text names the file, the entry, and what was expected."""


class ScriptEntry(BaseModel):
    """Input that takes effect from frame ``at`` (0 is the first) on."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    at: int = Field(ge=0)
    press: tuple[KeyCode, ...] = ()
    release: tuple[KeyCode, ...] = ()
    pointer_dx: float = 0.0
    pointer_dy: float = 0.0
    prompt: str | None = Field(default=None, max_length=2000)


def read_script(path: Path) -> dict[int, tuple[ScriptEntry, ...]]:
    """YAML or JSON, a list of entries, as frame → entries in the file's order. Raises ScriptError."""
    try:
        entries = TypeAdapter(tuple[ScriptEntry, ...]).validate_python(read_yaml(path) or ())
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
            f"{path}: {where or 'script'}: {told}; an entry looks like {{at: 12, press: [KeyW], release: [KeyA]}}"
        ) from error
    return {frame: tuple(group) for frame, group in groupby(sorted(entries, key=_at), key=_at)}


def _at(entry: ScriptEntry) -> int:
    return entry.at
