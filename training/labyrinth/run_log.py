"""What a run says: on the terminal with the seconds since its start, and in a file."""

from __future__ import annotations

import time
from pathlib import Path


class RunLog:
    """Call it with a line. The file holds every line as soon as it was said, also if the run is killed."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
        self._path = path
        self._started = time.monotonic()

    def __call__(self, line: str) -> None:
        text = f"{time.monotonic() - self._started:6.1f} s  {line}"
        print(text, flush=True)
        with self._path.open("a") as file:
            print(text, file=file)
