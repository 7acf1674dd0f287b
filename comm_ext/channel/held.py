"""The deliveries that a consumer has given out: released once, and noticed when they are forgotten."""

from __future__ import annotations

import functools
import warnings
import weakref
from collections import deque
from collections.abc import Callable

from ithaka.comm_ext.channel.base import Delivery, SlotStateError
from ithaka.comm_ext.channel.host_memory import let_go


class HeldDeliveries:
    """By sequence. Not thread-safe but for what the garbage collector does, which may come at any instruction."""

    def __init__(self, place: str, on_forgotten: Callable[[], None]) -> None:
        """``place`` names channel and consumer; ``on_forgotten`` is called by the collector: it may wake, no more."""
        self._place = place
        self._on_forgotten = on_forgotten
        self._held: dict[int, tuple[weakref.ref[Delivery], memoryview]] = {}
        self._forgotten: deque[int] = deque()

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

    def reap(self) -> list[int]:
        """Sequences of forgotten deliveries on whose bytes nothing stands, no longer held."""
        free = []
        while self._forgotten:
            sequence = self._forgotten.popleft()
            _, data = self._held.get(sequence, (None, None))
            if data is not None and let_go(data):
                del self._held[sequence]
                free.append(sequence)
        return free

    def clear(self) -> None:
        """All of them are given up."""
        held, self._held = self._held, {}
        for _, data in held.values():
            let_go(data)

    def _forget(self, sequence: int, slot: int, reference: weakref.ref[Delivery]) -> None:
        if self._held.get(sequence, (None,))[0] is not reference:
            return
        self._forgotten.append(sequence)
        self._on_forgotten()
        warnings.warn(f"{self._place}, slot {slot}: message {sequence} was never released", ResourceWarning, stacklevel=2)
