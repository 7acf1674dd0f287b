"""The channel in device memory: the face of ``base``, words and wake-ups as in ``host_shm``, slots in the producer's GPU.

The owner makes it by ``HostChannel.create(…, on_device=True)`` and speaks for the dead as for any channel; it needs no device.
The producer allocates one arena and says in the control memory how it is reached; each consumer maps it with its first message.

A message is published when its data is complete: publish takes the stream that writes it, and a thread waits where need be. So
no stream ever waits for another process, which may die. A consumer on the same device gets a view; one on another device copies
into its own slots, and gives the producer's back when the copy is done. Tensors that ranks hold in shards come through one
channel a rank; ``open_sharded_consumer`` makes them whole.
"""

from __future__ import annotations

from collections.abc import Sequence

from ithaka.comm_ext.channel.cuda_runtime import CudaRuntime
from ithaka.comm_ext.channel.device import DeviceRuntime
from ithaka.comm_ext.channel.device_consumer import DeviceConsumer
from ithaka.comm_ext.channel.device_producer import DeviceProducer, open_device_producer
from ithaka.comm_ext.channel.host_memory import close_all
from ithaka.comm_ext.channel.host_shm import clear_event
from ithaka.comm_ext.channel.shards import ShardedConsumer

__all__ = [
    "DeviceConsumer",
    "DeviceProducer",
    "ShardedConsumer",
    "clear_event",
    "open_consumer",
    "open_producer",
    "open_sharded_consumer",
]


def open_producer(fds: Sequence[int], device: int, runtime: DeviceRuntime | None = None) -> DeviceProducer:
    """The producer's side on ``device`` (this process's ordinal) over the descriptors of ``HostChannel.describe``.

    It takes them over, even when it fails. A channel on a device has one producer in its life, whose memory goes with it.
    Raises ChannelError when the descriptors are not those of such a channel or it had a producer, DeviceError when the device
    refuses.
    """
    return open_device_producer(fds, device, runtime or _cuda(fds))


def open_consumer(
    fds: Sequence[int], index: int, device: int, *, num_own_slots: int | None = None, runtime: DeviceRuntime | None = None
) -> DeviceConsumer:
    """Consumer ``index``'s side on ``device`` over the descriptors of ``HostChannel.describe``.

    It takes them over, even when it fails. ``num_own_slots`` are allocated if the producer turns out to be on another device,
    as many as the channel has unless said. Raises ChannelError as ``host_shm.open_consumer``, DeviceError for a
    device that is none.
    """
    return DeviceConsumer(fds, index, device, runtime or _cuda(fds), num_own_slots)


def open_sharded_consumer(
    channels: Sequence[tuple[Sequence[int], int]], device: int, *, num_own_slots: int = 3, runtime: DeviceRuntime | None = None
) -> ShardedConsumer:
    """One consumer of several channels, (descriptors, index) of each rank's in the order of the shards; takes over the
    descriptors, even when it fails.

    The messages of one sequence make a whole. Raises ChannelError, DeviceError as ``open_consumer``.
    """
    return ShardedConsumer(channels, device, runtime or _cuda([fd for fds, _ in channels for fd in fds]), num_own_slots)


def _cuda(fds: Sequence[int]) -> CudaRuntime:
    try:
        return CudaRuntime()
    except BaseException:
        close_all(fds)
        raise
