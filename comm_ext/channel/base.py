"""The channel's face: one producer, one or more consumers, slots of one arena, one reference count per consumer.

``claim → write → publish`` on the producer's side, ``take → read → release`` on each consumer's. A slot is free when every
consumer released it or is gone. Nothing here blocks: a caller that finds no slot or no message waits on the descriptor that
the side offers (an eventfd, readable when it is worth trying again).

A message is published when its data is complete; its layout travels with it, so a slot has no fixed shape. The two
memories behind this face are ``host_shm`` (memfd) and, on devices, CUDA IPC.

Each consumer has a policy by name. ``fifo``: every message, in order; its credits are the slots, so that a slow one makes the
producer wait. ``newest``: one that is behind gets only the newest message, what it missed is counted, and it never makes the
producer wait while the channel has three slots more than such consumers hold.

The end of the channel is a word, not a message: it always fits, and no policy drops it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

Policy = Literal["fifo", "newest"]


@dataclass(frozen=True, slots=True)
class TensorLayout:
    """Where one tensor lies in its slot. ``offset_bytes`` from the slot's start, C-contiguous, ``dtype`` by numpy's name."""

    shape: tuple[int, ...]
    dtype: str
    offset_bytes: int = 0
    shard_dim: int | None = None
    """The dimension along which this is one rank's part of a whole, part behind part in the ranks' order; None: it is whole."""


@dataclass(frozen=True, slots=True)
class ChannelMessage:
    """What travels beside the bytes. ``header`` is the stage's own, already encoded (``workers.wire``)."""

    header: bytes
    tensors: tuple[TensorLayout, ...]
    stream: int = 0
    """Whose message it is, by the caller's numbers from 0 to 2**64 - 1; what ``Producer.discard`` goes by."""


@dataclass(frozen=True, slots=True)
class Slot:
    """A claimed slot. ``data`` is writable and valid until publish."""

    index: int
    data: memoryview


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class Delivery:
    """A taken message. ``data`` is the whole slot, read-only, valid until release.

    One that is forgotten without a release is a ResourceWarning; its slot is taken until the consumer closes.
    """

    index: int
    sequence: int
    """Counts the channel's messages from 1; without a gap for a fifo consumer, but for what was discarded."""
    message: ChannelMessage
    data: memoryview


class ChannelError(Exception):
    """Base; the text names channel, slot and layout. ``code`` is stable."""

    code = "channel_failed"


class ChannelClosedError(ChannelError):
    """This side was closed, or the other side is gone and everything it sent was taken."""

    code = "channel_closed"


class SlotStateError(ChannelError):
    """Publish without claim, release twice, a slot of another channel: a bug of the caller."""

    code = "channel_slot_state"


class LayoutError(ChannelError):
    """The message does not fit its slot, or the layout is none."""

    code = "channel_layout"


class Producer(Protocol):
    """The writing side."""

    def claim(self) -> Slot | None:
        """A free slot, or None when every slot is in use. Raises ChannelClosedError."""
        ...

    def publish(self, slot: Slot, message: ChannelMessage) -> int:
        """Hand the slot to every consumer; returns the sequence. Raises LayoutError, SlotStateError, ChannelClosedError."""
        ...

    @property
    def num_free(self) -> int:
        """Slots that claim would find now."""
        ...

    def discard(self, stream: int) -> None:
        """Cancel what was published of ``stream``: a consumer that has not taken it yet never gets it.

        A fifo consumer passes it over, and frees its slot, at its next take. Raises ChannelClosedError.
        """
        ...

    def num_dropped(self, consumer: int) -> int:
        """Messages that consumer was passed over with: superseded by a newer one, or discarded. Raises ChannelError.

        Exact; while a take is under way the message it is about to return may still be counted.
        """
        ...

    def free_fd(self) -> int:
        """An eventfd, readable after a consumer released; the caller reads it before it tries again."""
        ...

    def close(self) -> None:
        """Tell the consumers that no message follows. Idempotent. What was published can still be taken."""
        ...


class Consumer(Protocol):
    """One reading side."""

    def take(self) -> Delivery | None:
        """The next message, or None when there is none yet. Raises ChannelClosedError when none can follow."""
        ...

    def release(self, delivery: Delivery) -> None:
        """Give up this consumer's count. Raises SlotStateError on a second release."""
        ...

    @property
    def num_dropped(self) -> int:
        """As ``Producer.num_dropped`` of this consumer."""
        ...

    def ready_fd(self) -> int:
        """An eventfd, readable after a publish or a close, and on devices after a claim: a message is on its way.

        The caller reads it before it tries again.
        """
        ...

    def close(self) -> None:
        """Release what is held, leave the channel. Idempotent."""
        ...
