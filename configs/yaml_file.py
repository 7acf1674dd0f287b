"""A YAML file's value. A key that stands twice in one mapping is an error: whichever counted, the other would be lost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml


class YamlFileError(Exception):
    """The file holds no value that can be used. The text names file and line, one problem a line."""


def read_yaml(path: Path) -> Any:
    """The file's only document; None where it holds none. Raises OSError, YamlFileError."""
    try:
        return _value(path, path.read_text(encoding="utf-8"))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f"{path}:{mark.line + 1}:{mark.column + 1}" if mark is not None else str(path)
        raise YamlFileError(f"{place}: not YAML: {error.problem or error.context}") from error
    # A date or a number that is none is a ValueError, and so are bytes that are no UTF-8.
    except (yaml.YAMLError, ValueError) as error:
        raise YamlFileError(f"{path}: not YAML: {' '.join(str(error).split())}") from error
    except RecursionError as error:
        raise YamlFileError(f"{path}: nested too deep to be read") from error


def _value(path: Path, text: str) -> Any:
    loader = yaml.SafeLoader(text)
    try:
        root = loader.get_single_node()
        if root is None:
            return None
        twice = [f"{path}:{line}" for line in _twice(root, "", set())]
        if twice:
            raise YamlFileError("\n".join(twice))
        return loader.construct_document(root)
    finally:
        loader.dispose()


def _twice(node: yaml.Node, path: str, seen: set[int]) -> Iterator[str]:
    """For each key that stands again in its mapping: where, which, and where it stood first."""
    # An alias is the node it stands for.
    if id(node) in seen:
        return
    seen.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            yield from _twice(item, f"{path}{index}.", seen)
    elif isinstance(node, yaml.MappingNode):
        first: dict[tuple[str, str], yaml.Mark] = {}
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode):
                place, before = key.start_mark, first.setdefault((key.tag, key.value), key.start_mark)
                if before is not place:
                    yield (
                        f"{place.line + 1}:{place.column + 1}: {path}{key.value} stands here and in line "
                        f"{before.line + 1}, column {before.column + 1}; keep one of them"
                    )
                yield from _twice(value, f"{path}{key.value}.", seen)
