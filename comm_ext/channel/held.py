"""The deliveries that a consumer has given out: released once, and noticed when they are forgotten."""

from __future__ import annotations

import functools
import warnings
import weakref
from typing import Generic, TypeVar

from ithaka.comm_ext.channel.base import Delivery, SlotStateError
from ithaka.comm_ext.channel.device import DeviceDelivery

GivenT = TypeVar("GivenT", Delivery, DeviceDelivery)
KeptT = TypeVar("KeptT")


class HeldDeliveries(Generic[GivenT, KeptT]):
    """By sequence, with what the consumer keeps of each. Not thread-safe but for what the garbage collector does.

    A forgotten delivery stays counted until the consumer closes: an array may still stand on its bytes, and nobody can tell.
    """

    def __init__(self, place: str) -> None:
        """``place`` names channel and consumer."""
        self._place = place
        self._held: dict[int, tuple[weakref.ref[GivenT], KeptT]] = {}

    def add(self, delivery: GivenT, kept: KeptT) -> None:
        forget = functools.partial(self._forget, delivery.sequence, delivery.index)
        self._held[delivery.sequence] = (weakref.ref(delivery, forget), kept)

    def remove(self, delivery: GivenT) -> KeptT:
        """What was kept of it. Raises SlotStateError when it is not held here."""
        found = self._held.get(delivery.sequence)
        if found is None or found[0]() is not delivery:
            raise SlotStateError(
                f"{self._place}, slot {delivery.index}: message {delivery.sequence} {delivery.message.tensors} was released "
                "before, or is another channel's"
            )
        del self._held[delivery.sequence]
        return found[1]

    def clear(self) -> list[KeptT]:
        """All of them are given up; what was kept."""
        held, self._held = self._held, {}
        return [kept for _, kept in held.values()]

    def _forget(self, sequence: int, slot: int, reference: weakref.ref[GivenT]) -> None:
        found = self._held.get(sequence)
        if found is not None and found[0] is reference:
            warnings.warn(f"{self._place}, slot {slot}: message {sequence} was never released", ResourceWarning, stacklevel=2)
