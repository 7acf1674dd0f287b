"""The deliveries that a consumer has given out: released once, and noticed when they are forgotten."""

from __future__ import annotations

import functools
import warnings
import weakref

from ithaka.comm_ext.channel.base import Delivery, SlotStateError
from ithaka.comm_ext.channel.host_memory import let_go


class HeldDeliveries:
    """By sequence. Not thread-safe but for what the garbage collector does, which may come at any instruction.

    A forgotten delivery stays counted until the consumer closes: an array may still stand on its bytes, and nobody can tell.
    """

    def __init__(self, place: str) -> None:
        """``place`` names channel and consumer."""
        self._place = place
        self._held: dict[int, tuple[weakref.ref[Delivery], memoryview]] = {}

    def add(self, delivery: Delivery) -> None:
        forget = functools.partial(self._forget, delivery.sequence, delivery.index)
        self._held[delivery.sequence] = (weakref.ref(delivery, forget), delivery.data)

    def remove(self, delivery: Delivery) -> None:
        """Raises SlotStateError when it is not held here."""
        reference, data = self._held.get(delivery.sequence, (None, None))
        if reference is None or data is None or reference() is not delivery:
            raise SlotStateError(
                f"{self._place}, slot {delivery.index}: message {delivery.sequence} {delivery.message.tensors} was released "
                "before, or is another channel's"
            )
        del self._held[delivery.sequence]
        let_go(data)

    def clear(self) -> None:
        """All of them are given up."""
        held, self._held = self._held, {}
        for _, data in held.values():
            let_go(data)

    def _forget(self, sequence: int, slot: int, reference: weakref.ref[Delivery]) -> None:
        if self._held.get(sequence, (None,))[0] is reference:
            warnings.warn(f"{self._place}, slot {slot}: message {sequence} was never released", ResourceWarning, stacklevel=2)
