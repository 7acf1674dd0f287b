"""The memories a channel can lie in, with one face: how its sides are opened, written and read there."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from tests.unit.fake_device import FakeRuntime

from ithaka.comm_ext.channel import cuda_ipc, host_shm
from ithaka.comm_ext.channel.base import ChannelMessage, TensorLayout
from ithaka.comm_ext.channel.cuda_runtime import CudaRuntime

ITEMS = 50_000
SLOT_BYTES = 4 * ITEMS
LAYOUT = TensorLayout((ITEMS,), "uint32")


class ChannelMemory(Protocol):
    """A memory; sides and slots are those of ``host_shm`` or ``cuda_ipc``."""

    def open_producer(self, fds: Sequence[int], device: int) -> Any: ...

    def open_consumer(self, fds: Sequence[int], index: int, device: int) -> Any: ...

    def fill(self, data: Any, number: int) -> None: ...

    def values(self, data: Any) -> npt.NDArray[np.uint32]: ...


class HostMemory:
    def open_producer(self, fds: Sequence[int], device: int) -> host_shm.HostProducer:
        return host_shm.open_producer(fds)

    def open_consumer(self, fds: Sequence[int], index: int, device: int) -> host_shm.HostConsumer:
        return host_shm.open_consumer(fds, index)

    def fill(self, data: Any, number: int) -> None:
        np.frombuffer(data, np.uint32, ITEMS)[:] = number

    def values(self, data: Any) -> npt.NDArray[np.uint32]:
        return np.frombuffer(data, np.uint32, ITEMS)


@dataclass
class FakeMemory:
    runtime: FakeRuntime = field(default_factory=FakeRuntime)

    def open_producer(self, fds: Sequence[int], device: int) -> cuda_ipc.DeviceProducer:
        return cuda_ipc.open_producer(fds, device, self.runtime)

    def open_consumer(self, fds: Sequence[int], index: int, device: int) -> cuda_ipc.DeviceConsumer:
        return cuda_ipc.open_consumer(fds, index, device, runtime=self.runtime)

    def fill(self, data: Any, number: int) -> None:
        self.values(data)[:] = number

    def values(self, data: Any) -> npt.NDArray[np.uint32]:
        return np.ctypeslib.as_array((ctypes.c_uint32 * ITEMS).from_address(data.address))


@dataclass
class CudaMemory:
    runtime: CudaRuntime = field(default_factory=CudaRuntime)
    driver: ctypes.CDLL = field(default_factory=lambda: ctypes.CDLL("libcuda.so.1"))

    def open_producer(self, fds: Sequence[int], device: int) -> cuda_ipc.DeviceProducer:
        return cuda_ipc.open_producer(fds, device, self.runtime)

    def open_consumer(self, fds: Sequence[int], index: int, device: int) -> cuda_ipc.DeviceConsumer:
        return cuda_ipc.open_consumer(fds, index, device, runtime=self.runtime)

    def fill(self, data: Any, number: int) -> None:
        with self.runtime.on(data.device):
            assert self.driver.cuMemsetD32_v2(ctypes.c_uint64(data.address), ctypes.c_uint(number), ctypes.c_size_t(ITEMS)) == 0

    def values(self, data: Any) -> npt.NDArray[np.uint32]:
        values = np.empty(ITEMS, np.uint32)
        target, size = ctypes.c_void_p(values.ctypes.data), ctypes.c_size_t(values.nbytes)
        with self.runtime.on(data.device):
            assert self.driver.cuMemcpyDtoH_v2(target, ctypes.c_uint64(data.address), size) == 0
        return values

    def free_bytes(self, device: int) -> int:
        """Of the whole device, whoever uses it."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        with self.runtime.on(device):
            assert self.driver.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)) == 0
        return free.value


class TorchMemory(CudaMemory):
    """Filled by torch, from memory of torch's allocator."""

    def fill(self, data: Any, number: int) -> None:
        import torch

        from ithaka.comm_ext.channel import tensors

        values = torch.full((ITEMS,), number, dtype=torch.int32, device=f"cuda:{data.device}")
        tensors.view(data, TensorLayout((ITEMS,), "int32")).copy_(values)


MEMORIES: dict[str, type[HostMemory] | type[FakeMemory] | type[CudaMemory]] = {
    "host": HostMemory,
    "fake": FakeMemory,
    "cuda": CudaMemory,
    "torch": TorchMemory,
}


def write(memory: ChannelMemory, slot: Any, number: int) -> ChannelMessage:
    memory.fill(slot.data, number)
    return ChannelMessage(b"%d" % number, (LAYOUT,))


def read(memory: ChannelMemory, delivery: Any) -> int:
    """The delivery's number. Raises ValueError when bytes, header and layout do not agree."""
    values = memory.values(delivery.data)
    number = int(values[0])
    if (values != number).any() or delivery.message.header != b"%d" % number or delivery.message.tensors != (LAYOUT,):
        raise ValueError(f"message {delivery.sequence} is torn")
    return number
