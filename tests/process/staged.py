"""Models of several stages on the CPU, where a device's number is a process."""

from __future__ import annotations

from typing import Any

from ithaka.configs.schema import ModelSection

APART = {"denoise": [0], "decode": [1]}


def staged(name: str = "s", *, stages: dict[str, list[int]] = APART, max_sessions: int = 4, **options: Any) -> ModelSection:
    """A small synthetic model, two frames a chunk."""
    return ModelSection.model_validate(
        {
            "name": name,
            "family": "synthetic",
            "device": "cpu",
            "stages": stages,
            "threads_per_rank": 1,
            "max_sessions": max_sessions,
            "options": {"width": 128, "height": 64, "chunk_frames": 2, **options},
        }
    )


def labyrinth(name: str, *, ranks: int = 1, stages: dict[str, list[int]] | None = None) -> ModelSection:
    """The shipped model, the same bits whatever the number of processes."""
    values: dict[str, Any] = {"ranks": ranks} if stages is None else {"stages": stages}
    return ModelSection.model_validate(
        {
            "name": name,
            "family": "labyrinth",
            "device": "cpu",
            "threads_per_rank": 1,
            "options": {"dtype": "float32"},
            **values,
        }
    )
