"""SHA-256 of every file of a weights folder's parts, kept in its index: a flipped byte is refused, not served."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from ithaka.workers.families.base import FamilyLoadError

INDEX = "model_index.json"
TABLE = "sha256"
REPAIR = "The files are damaged or of another version: reinstall ithaka, or train the model again."


def record_checksums(folder: Path) -> None:
    """Write the digests of the parts' files, as they are now, into the folder's index."""
    index = json.loads((folder / INDEX).read_text())
    files = sorted(file for file in folder.glob("*/*") if file.is_file())
    index[TABLE] = {file.relative_to(folder).as_posix(): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}
    (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n")


class CheckedFolder:
    """Reads a weights folder's files and hands out none that differs from what was recorded. Raises FamilyLoadError."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        if not (folder / INDEX).is_file():
            raise FamilyLoadError(
                f"no weights at {folder}: {INDEX} is missing. Reinstall ithaka, or train them with "
                "`python -m training.labyrinth.train` and name the folder in the model's option `weights`."
            )
        self.index = _object(folder / INDEX, _bytes(folder / INDEX))
        digests = self.index.get(TABLE)
        if not isinstance(digests, dict):
            raise FamilyLoadError(f"{folder / INDEX} names no {TABLE} of its files, so they can't be checked. {REPAIR}")
        self._digests = digests

    def holds(self, name: str) -> bool:
        """Whether the folder was recorded with this file, by its path within."""
        return name in self._digests

    def read(self, name: str) -> bytes:
        """A file's bytes."""
        data = _bytes(self.folder / name)
        if hashlib.sha256(data).hexdigest() != self._digests.get(name):
            raise FamilyLoadError(f"{self.folder / name} is not the file that was exported: its {TABLE} differs. {REPAIR}")
        return data

    def read_object(self, name: str) -> dict[str, Any]:
        """A JSON file's object."""
        return _object(self.folder / name, self.read(name))


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise FamilyLoadError(f"{path} can't be read: {error}. {REPAIR}") from error


def _object(path: Path, data: bytes) -> dict[str, Any]:
    try:
        value = json.loads(data)
    except ValueError as error:
        raise FamilyLoadError(f"{path} can't be read: {error}. {REPAIR}") from error
    if not isinstance(value, dict):
        raise FamilyLoadError(f"{path} is not a JSON object. {REPAIR}")
    return value
