"""How devices reach each other: by the driver's word, compared among ranks. No CUDA call in the pure half."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ithaka.comm_ext.ulysses.cuda_library import CudaLibrary

# Numbers of CUdevice_P2PAttribute.
_ACCESS_SUPPORTED = 2
_NATIVE_ATOMIC_SUPPORTED = 3


@dataclass(frozen=True, slots=True)
class Reach:
    """From one device to another: whether memory can be written at all, and whether over NVLink."""

    access: bool
    nvlink: bool


def probe_reach(library: CudaLibrary, device: int, num_devices: int) -> dict[str, list[bool]]:
    """By the other device's UUID, for all that this process sees: access, NVLink. Empty without a driver library."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return {}
    found = {}
    for other in range(num_devices):
        if other != device:
            access, atomics = (
                _attribute(driver, number, device, other) for number in (_ACCESS_SUPPORTED, _NATIVE_ATOMIC_SUPPORTED)
            )
            found[library.device_facts(other).uuid] = [access, access and atomics]
    return found


def driver_version() -> int:
    """Of the CUDA driver, 13000 for 13.0; 0 without one."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    version = ctypes.c_int()
    driver.cuDriverGetVersion(ctypes.byref(version))
    return version.value


def unreachable(cards: Sequence[Mapping[str, Any]]) -> str | None:
    """The first pair of ranks whose devices can't write to each other, in words; None if there is none."""
    for rank, card in enumerate(cards):
        for other, theirs in enumerate(cards):
            reach = _reach(card, theirs)
            if reach is not None and not reach.access:
                return f"the GPU of rank {rank} can't write to the GPU of rank {other}: no peer access between them"
    return None


def link_of(cards: Sequence[Mapping[str, Any]]) -> str:
    """What joins the devices: ``nvlink``, ``pcie`` if any pair has no better, ``one device``, or ``unknown``."""
    reaches = [
        _reach(card, theirs) for card in cards for theirs in cards if card is not theirs and card["uuid"] != theirs["uuid"]
    ]
    if not reaches:
        return "one device"
    if any(reach is not None and not reach.nvlink for reach in reaches):
        return "pcie"
    return "unknown" if any(reach is None for reach in reaches) else "nvlink"


def _reach(card: Mapping[str, Any], theirs: Mapping[str, Any]) -> Reach | None:
    """None if the devices are the same, or one is hidden from the other's process."""
    found = card["reach"].get(theirs["uuid"])
    return None if found is None else Reach(*found)


def _attribute(driver: ctypes.CDLL, number: int, device: int, other: int) -> bool:
    value = ctypes.c_int()
    status = driver.cuDeviceGetP2PAttribute(ctypes.byref(value), number, device, other)
    return status == 0 and value.value != 0
