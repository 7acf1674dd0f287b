"""YAML file, environment and flags to one ``ServeConfig``; the only place that reads the environment.

Later layers win field by field: built-in defaults, the file, ``ITHAKA_SECTION__FIELD`` variables, flags.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError, create_model
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, EnvSettingsSource, SettingsConfigDict

from ithaka.configs.schema import ServeConfig

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
        _Layer("environment", _read_environment(os.environ if environ is None else environ)),
        _Layer("command line", dict(flags)),
    ]
    merged: dict[str, Any] = reduce(_merge, (layer.values for layer in layers), {})
    try:
        return ServeConfig.model_validate(merged)
    except ValidationError as error:
        raise ConfigError("\n".join(_explain(detail, layers) for detail in error.errors())) from error


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; give an existing file to --config") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not YAML: {' '.join(str(error).split())}") from error
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: expected a mapping of sections, found {type(values).__name__}")
    return values


def _read_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    ours = {name: value for name, value in environ.items() if name.startswith(ENV_PREFIX)}
    for name in ours:
        section = name.removeprefix(ENV_PREFIX).split("__")[0].lower()
        if section not in ServeConfig.model_fields:
            raise ConfigError(
                f"environment: {name}: no section {section!r}; expected {ENV_PREFIX}SECTION__FIELD with a section of "
                f"{', '.join(sorted(ServeConfig.model_fields))}"
            )

    class Reader(BaseSettings):
        model_config = SettingsConfigDict(env_prefix=ENV_PREFIX, env_nested_delimiter="__", env_ignore_empty=True)

    fields: dict[str, Any] = {name: (info.annotation, info) for name, info in ServeConfig.model_fields.items()}
    source = EnvSettingsSource(create_model("ServeReader", __base__=Reader, **fields))
    values: dict[str, Any] = {}
    for name, value in ours.items():
        source.env_vars = {name.lower(): value}
        try:
            values = _merge(values, source())
        except ValueError as error:
            raise ConfigError(f"environment: {name}: lists and mappings are given as JSON, e.g. '[\"…\"]'") from error
    return values


def _merge(low: dict[str, Any], high: Mapping[str, Any]) -> dict[str, Any]:
    both = dict(low)
    for key, value in high.items():
        below = both.get(key)
        both[key] = _merge(below, value) if isinstance(below, dict) and isinstance(value, Mapping) else value
    return both


def _explain(detail: ErrorDetails, layers: list[_Layer]) -> str:
    loc = tuple(part for part in detail["loc"] if part != "function-after")
    source = next((layer.source for layer in reversed(layers) if _holds(layer.values, loc)), "configuration")
    path = ".".join(str(part) for part in loc)
    secret = any(str(part) in _SECRET_FIELDS for part in loc)
    message = detail["msg"].removeprefix("Value error, ")
    if not loc:
        return f"{' + '.join(layer.source for layer in layers if layer.values)}: {message}"
    if detail["type"] == "extra_forbidden":
        return f"{source}: {path}: no such field (a typo?)"
    given = "" if secret or isinstance(detail["input"], dict) else f" = {detail['input']!r}"
    return f"{source}: {path}{given}: {message}"


def _holds(values: Any, loc: tuple[int | str, ...]) -> bool:
    for part in loc:
        try:
            values = values[part]
        except (KeyError, IndexError, TypeError):
            return False
    return True
