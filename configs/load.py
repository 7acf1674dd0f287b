"""YAML file, environment and flags to one ``ServeConfig``; the only place that reads the environment.

Later layers win field by field: built-in defaults, the file, ``ITHAKA_SECTION__FIELD`` variables, flags.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

from pydantic import ValidationError, create_model
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, EnvSettingsSource, SettingsConfigDict

from ithaka.configs.field_paths import fields_at, suggestion
from ithaka.configs.names import did_you_mean, nearest
from ithaka.configs.schema import ServeConfig
from ithaka.configs.yaml_file import YamlFileError, read_yaml

ENV_PREFIX = "ITHAKA_"
_SECRET_FIELDS = frozenset({"api_keys"})


class ConfigError(Exception):
    """The configuration can't be used. The text names source, field path, value and expectation, one problem a line."""


@dataclass(frozen=True, slots=True)
class _Layer:
    source: str
    values: dict[str, Any]


def load_config(path: Path | None, flags: Mapping[str, Any], environ: Mapping[str, str] | None = None) -> ServeConfig:
    """The validated configuration.

    ``flags`` is a nested mapping of the fields given on the command line; ``environ`` defaults to the process's own.
    Raises ConfigError.
    """
    layers = [
        *([_Layer(str(path), _read_yaml(path))] if path else []),
        *_read_environment(os.environ if environ is None else environ),
        _Layer("command line", dict(flags)),
    ]
    merged: dict[str, Any] = reduce(_merge, (layer.values for layer in layers), {})
    try:
        return ServeConfig.model_validate(merged)
    except ValidationError as error:
        raise ConfigError("\n".join(_explain(detail, layers) for detail in error.errors())) from error


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        values = read_yaml(path)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; give an existing file to --config") from error
    except YamlFileError as error:
        raise ConfigError(str(error)) from error
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: expected a mapping of sections, found {type(values).__name__}")
    return values


class _Environment(EnvSettingsSource):
    """Reads JSON as strictly as the file is read."""

    def decode_complex_value(self, field_name: str, field: FieldInfo, value: Any) -> Any:
        return json.loads(value, object_pairs_hook=_once)


class _TwiceError(ValueError):
    """A key stands twice in an object."""


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    twice = [key for key, count in Counter(key for key, _ in pairs).items() if count > 1]
    if twice:
        raise _TwiceError(f"{twice[0]!r} stands twice in one object; keep one of them")
    return dict(pairs)


def _read_environment(environ: Mapping[str, str]) -> list[_Layer]:
    """One layer a variable, so that an error names it."""

    class Reader(BaseSettings):
        model_config = SettingsConfigDict(env_prefix=ENV_PREFIX, env_nested_delimiter="__", env_ignore_empty=True)

    fields: dict[str, Any] = {name: (info.annotation, info) for name, info in ServeConfig.model_fields.items()}
    source = _Environment(create_model("ServeReader", __base__=Reader, **fields))
    layers = []
    for name, value in environ.items():
        if not name.startswith(ENV_PREFIX):
            continue
        path = name.removeprefix(ENV_PREFIX)
        section = path.split("__")[0].lower()
        if section not in ServeConfig.model_fields:
            near = nearest(path, _variables())
            meant = "; expected" if near is None else f"; did you mean {ENV_PREFIX}{near}? Expected"
            raise ConfigError(
                f"environment: {name}: no section {section!r}{meant} {ENV_PREFIX}SECTION__FIELD with a section of "
                f"{', '.join(sorted(ServeConfig.model_fields))}"
            )
        source.env_vars = {name.lower(): value}
        try:
            layers.append(_Layer(f"environment: {name}", source()))
        except ValueError as error:
            told = (
                error.__cause__
                if isinstance(error.__cause__, _TwiceError)
                else "lists and mappings are given as JSON, e.g. '[\"…\"]'"
            )
            raise ConfigError(f"environment: {name}: {told}") from error
    return layers


def _variables() -> list[str]:
    """Every one that there can be, without the prefix, but for those within lists."""
    sections = ServeConfig.model_fields
    fields = [f"{section}__{field}" for section in sections for field in fields_at(ServeConfig, (section,))]
    return [name.upper() for name in (*sections, *fields)]


def _merge(low: dict[str, Any], high: Mapping[str, Any]) -> dict[str, Any]:
    both = dict(low)
    for key, value in high.items():
        below = both.get(key)
        both[key] = _merge(below, value) if isinstance(below, dict) and isinstance(value, Mapping) else value
    return both


def _explain(detail: ErrorDetails, layers: list[_Layer]) -> str:
    loc = tuple(part for part in detail["loc"] if part != "function-after")
    if not loc:
        return f"{' + '.join(layer.source for layer in layers if layer.values)}: {_told(detail)}"
    held = loc[:-1] if detail["type"] == "missing" else loc
    source = next((layer.source for layer in reversed(layers) if _holds(layer.values, held)), "configuration")
    path = ".".join(str(part) for part in loc)
    if detail["type"] == "extra_forbidden":
        return f"{source}: {path}: no such field{suggestion(ServeConfig, loc)}"
    if detail["type"] == "model_type":
        return f"{source}: {path}: expected a mapping with fields of {', '.join(fields_at(ServeConfig, loc))}"
    secret = any(str(part) in _SECRET_FIELDS for part in loc)
    given = "" if secret or isinstance(detail["input"], dict) else f" = {detail['input']!r}"
    return f"{source}: {path}{given}: {_told(detail)}"


def _told(detail: ErrorDetails) -> str:
    """In pydantic's words, and the choice that was nearly made."""
    choices = re.findall(r"'([^']*)'", detail["msg"]) if detail["type"] == "literal_error" else ()
    return detail["msg"].removeprefix("Value error, ") + did_you_mean(str(detail["input"]), choices)


def _holds(values: Any, loc: tuple[int | str, ...]) -> bool:
    for part in loc:
        try:
            values = values[part]
        except (KeyError, IndexError, TypeError):
            return False
    return True
