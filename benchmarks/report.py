"""Every figure of docs/performance.md that needs no GPU, one command after another: ``make bench``. Takes about six minutes.

Run it on a machine that does nothing else; several figures pin processes to cores.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import torch
from rich.console import Console

COMMANDS = (
    ("startup", "--runs", "3"),
    ("client_e2e", "--browser"),
    ("client_e2e",),
    ("client_e2e", "-c", "configs/barcodes.yaml"),
    ("client_e2e", "-c", "configs/barcodes.yaml", "--browser"),
    ("wire_load", "--sessions", "8"),
    ("labyrinth",),
    ("labyrinth", "--ranks", "2"),
    ("labyrinth", "--decode-apart"),
    ("ulysses_host",),
    ("channel_host",),
    ("encode",),
)


def main() -> int:
    console = Console()
    console.print(
        f"{os.cpu_count()} cores, {platform.processor() or platform.machine()}, Linux {platform.release()}, "
        f"Python {platform.python_version()}, torch {torch.__version__}"
    )
    failed = []
    for module, *arguments in COMMANDS:
        console.rule(" ".join(("python -m", f"benchmarks.{module}", *arguments)))
        if subprocess.run([sys.executable, "-m", f"benchmarks.{module}", *arguments]).returncode:
            failed.append(module)
    if failed:
        console.print(f"[red]failed: {', '.join(failed)}[/]")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
