"""The encode process's sign of life: frames done by all its sessions, and whether one is at work."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from ithaka.workers.child_socket import ChildSocket
from ithaka.workers.contract import Heartbeat


class Heartbeats:
    """Sends Heartbeat every ``interval_s`` from ``start`` to ``stop``."""

    def __init__(self, control: ChildSocket, interval_s: float) -> None:
        self._control = control
        self._interval_s = interval_s
        self._lock = threading.Lock()
        self._num_done = 0
        self._num_working = 0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="heartbeats", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """No heartbeat follows."""
        self._stopped.set()
        self._thread.join()

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        """While inside, a lack of progress means a hang. Any thread."""
        with self._lock:
            self._num_working += 1
        try:
            yield
        finally:
            with self._lock:
                self._num_working -= 1
                self._num_done += 1

    def _beat(self) -> None:
        # Without a server there is nobody to tell; the main thread sees that too and ends the process.
        with contextlib.suppress(OSError):
            while not self._stopped.wait(self._interval_s):
                with self._lock:
                    beat = Heartbeat(self._num_done, self._num_working > 0)
                self._control.send(beat)
