"""A child's sign of life: a thread that reports progress whatever the main thread is doing."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from ithaka.workers.child_socket import ChildSocket
from ithaka.workers.contract import Heartbeat


class Pulse:
    """Sends Heartbeat every ``interval_s`` from ``start`` to ``stop``."""

    def __init__(self, control: ChildSocket, interval_s: float) -> None:
        self._control = control
        self._interval_s = interval_s
        self._lock = threading.Lock()
        self._progress = 0
        self._num_busy = 0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="pulse", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Idempotent; no heartbeat follows."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()

    def progress(self) -> None:
        """The work went on. Any thread."""
        with self._lock:
            self._progress += 1

    @contextlib.contextmanager
    def busy(self) -> Iterator[None]:
        """While inside, a lack of progress means a hang. Any thread."""
        with self._lock:
            self._progress += 1
            self._num_busy += 1
        try:
            yield
        finally:
            with self._lock:
                self._num_busy -= 1

    def _beat(self) -> None:
        # The server's end closes only with the server itself, and then this process goes too.
        with contextlib.suppress(OSError):
            while not self._stopped.wait(self._interval_s):
                with self._lock:
                    beat = Heartbeat(self._progress, self._num_busy > 0)
                self._control.send(beat)
