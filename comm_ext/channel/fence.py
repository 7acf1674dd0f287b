"""Order between memory accesses of two processes, from Python.

Two things are needed of the machine. *One store is one store*: CPython's memoryview writes and reads an item of format Q by a
memcpy of 8 bytes, which every optimising compiler turns into one aligned instruction. *Order*: x86-64 keeps stores in the
order of the program, and loads too, so no fence is needed. Other machines (aarch64) may reorder both; there a fence is made of
a lock that is released and then acquired again: what came before the release stays before it (store-release), what comes after
the acquire stays after it (load-acquire), and the architecture keeps a load-acquire behind an earlier store-release. That the
lock is made of these instructions is true of CPython's semaphores and futex mutexes, but no promise of the language.

*A store before a load of another word* is the one order that x86-64 does not keep either. Channels with a newest-wins consumer
need it (``ring``: each side says what it did, then looks at what the other said); there the fence is the lock on every machine,
whose acquisition is an atomic read-modify-write and as such a full barrier on x86-64.

A wake-up needs no more: an eventfd's counter is changed under the kernel's spin lock on both sides.
"""

from __future__ import annotations

import platform
import threading
from collections.abc import Callable


def make_fence(machine: str | None = None, *, is_full: bool = False) -> Callable[[], None]:
    """A fence for ``machine`` (``platform.machine()`` of this one); ``is_full`` also keeps stores ahead of later loads."""
    if not is_full and (machine or platform.machine()) in ("x86_64", "AMD64"):
        return _no_fence
    return _lock_fence(threading.Lock())


def _no_fence() -> None:
    pass


def _lock_fence(lock: threading.Lock) -> Callable[[], None]:
    def fence() -> None:
        with lock:
            pass
        with lock:
            pass

    return fence
