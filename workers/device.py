"""The device that a rank computes on."""

from __future__ import annotations

import torch

from ithaka.workers.families.base import FamilyLoadError


def pick_device(setting: str, rank: int, num_ranks: int) -> torch.device:
    """The device of ``rank`` for ``auto``, ``cpu``, ``cuda`` or ``cuda:N`` (the first rank's), the same rule on every rank.

    Raises FamilyLoadError when CUDA is asked for and there are too few devices.
    """
    if setting == "cpu":
        return torch.device("cpu")
    num_devices = torch.cuda.device_count()
    if setting == "auto":
        return torch.device("cuda", rank) if num_devices >= num_ranks else torch.device("cpu")
    first = int(setting.partition(":")[2] or 0)
    if first + num_ranks > num_devices:
        raise FamilyLoadError(
            f"device {setting!r} with {num_ranks} ranks needs {first + num_ranks} CUDA devices, there are {num_devices}; "
            "lower ranks, or set device to auto or cpu",
            field="device",
        )
    return torch.device("cuda", first + rank)
