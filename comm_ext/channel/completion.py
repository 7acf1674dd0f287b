"""Actions that follow events of a device, in the order in which they were asked for: at once where the event is over."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

from ithaka.comm_ext.channel.base import ChannelError
from ithaka.comm_ext.channel.device import DeviceRuntime

Action = Callable[[], None]
_PATIENCE_US = 20
"""What handing an action to the thread costs, and more where the interpreter is busy."""


class Completions:
    """One lane of events on one device. Its thread starts with the first event that has to be waited for."""

    def __init__(self, runtime: DeviceRuntime, device: int, name: str, on_fault: Callable[[ChannelError], None]) -> None:
        """``on_fault``: the device failed, or an action did; later ones are still tried. Called in the thread."""
        self._runtime = runtime
        self._device = device
        self._name = name
        self._on_fault = on_fault
        self._waiting: queue.SimpleQueue[tuple[int | None, Action] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._num_waiting = 0
        self._thread: threading.Thread | None = None

    def follow(self, stream: int, action: Action) -> None:
        """``action`` once all that ``stream`` has queued by now is done. Raises what device and action raise at once."""
        with self._lock:
            # An event that was just recorded is never over at once, even on a stream that has nothing to do.
            if self._num_waiting or not self._runtime.is_idle(self._device, stream, within_us=_PATIENCE_US):
                self._waiting.put((self._runtime.record(self._device, stream, sleeps=True), action))
                self._num_waiting += 1
                self._start()
                return
        action()

    def follow_all(self, action: Action) -> None:
        """``action`` once everything before is done."""
        with self._lock:
            if self._num_waiting:
                self._num_waiting += 1
                self._waiting.put((None, action))
                return
        action()

    @property
    def num_waiting(self) -> int:
        with self._lock:
            return self._num_waiting

    def close(self) -> None:
        """Nothing follows; what waits is still done."""
        with self._lock:
            if self._thread is not None:
                self._waiting.put(None)
                self._thread = None

    def _start(self) -> None:
        if self._thread is None:
            # A daemon: a device that never answers must not keep the process.
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while (item := self._waiting.get()) is not None:
            event, action = item
            try:
                if event is not None:
                    self._runtime.wait(self._device, event)
                    self._runtime.close_event(self._device, event)
                action()
            except ChannelError as error:
                self._on_fault(error)
            with self._lock:
                self._num_waiting -= 1
