"""A TCP proxy on loopback whose connections can be cut: a network that fails on demand."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator

CHUNK_BYTES = 64 * 1024
RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class CuttableProxy:
    def __init__(self, target_port: int) -> None:
        self._target = ("127.0.0.1", target_port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._lock = threading.Lock()
        self._is_down = False
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def cut(self) -> int:
        """Reset every connection; new ones are served. Returns how many there were."""
        with self._lock:
            pairs, self._pairs = self._pairs, []
        for pair in pairs:
            for end in pair:
                with contextlib.suppress(OSError):
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
                    end.shutdown(socket.SHUT_RDWR)
                end.close()
        return len(pairs)

    def go_down(self) -> None:
        """Cut, and reset whatever comes, until ``come_back``."""
        self._is_down = True
        self.cut()

    def come_back(self) -> None:
        self._is_down = False

    def close(self) -> None:
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            if self._is_down:
                near.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
                near.close()
                continue
            far = socket.create_connection(self._target)
            with self._lock:
                self._pairs.append((near, far))
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=_pump, args=(source, sink), daemon=True).start()


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(CHUNK_BYTES):
            sink.sendall(data)
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_WR)


@contextlib.contextmanager
def cuttable_proxy(target_port: int) -> Iterator[CuttableProxy]:
    proxy = CuttableProxy(target_port)
    try:
        yield proxy
    finally:
        proxy.close()
