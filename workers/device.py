"""The device that a process of a group computes on."""

from __future__ import annotations

import torch

from ithaka.workers.families.base import FamilyLoadError


def pick_device(setting: str, index: int, num_devices: int) -> torch.device:
    """Device ``index`` of the ``num_devices`` that a group needs, for ``auto``, ``cpu``, ``cuda`` or ``cuda:N`` (the first).

    The same rule in every process of the group.

    Raises FamilyLoadError when CUDA is asked for and there are too few devices.
    """
    if setting == "cpu":
        return torch.device("cpu")
    num_present = torch.cuda.device_count()
    if setting == "auto":
        return torch.device("cuda", index) if num_present >= num_devices else torch.device("cpu")
    first = int(setting.partition(":")[2] or 0)
    if first + num_devices > num_present:
        raise FamilyLoadError(
            f"device {setting!r} as ranks or stages ask needs {first + num_devices} CUDA devices, there are {num_present}; "
            "lower ranks or the numbers in stages, or set device to auto or cpu",
            field="device",
        )
    return torch.device("cuda", first + index)
