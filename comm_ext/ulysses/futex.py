"""Sleeping and waking on a word of shared memory, and the memory fence that Python lacks. Linux, little-endian, 64 bits."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import threading

# Numbers of man 2 futex and man 2 membarrier; not FUTEX_PRIVATE: the waiters are other processes.
_FUTEX_WAIT = 0
_FUTEX_WAKE = 1
_EVERYBODY = 2**31 - 1
_MEMBARRIER_PRIVATE_EXPEDITED = 1 << 3
_MEMBARRIER_REGISTER_PRIVATE_EXPEDITED = 1 << 4
_SYSCALLS = {"x86_64": (202, 324), "aarch64": (98, 283), "riscv64": (98, 283)}


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class Futex:
    """Calls bound to one mapping; ``word`` is an index of 8-byte words from ``base_address``."""

    def __init__(self, base_address: int) -> None:
        machine = platform.machine()
        if machine not in _SYSCALLS:
            raise OSError(errno.ENOSYS, f"no futex numbers for {machine}: known are {', '.join(_SYSCALLS)}")
        self._base = base_address
        self._lock = threading.Lock()
        self._number, self._membarrier_number = _SYSCALLS[machine]
        self._syscall = ctypes.CDLL(None, use_errno=True).syscall
        self._syscall.restype = ctypes.c_long
        self._syscall.argtypes = (
            ctypes.c_long,
            ctypes.c_void_p,
            ctypes.c_int,
            ctypes.c_uint32,
            ctypes.c_void_p,
            ctypes.c_void_p,
            ctypes.c_uint32,
        )
        # x86 keeps stores in order and loads in order, which is all that publishing needs; others are told to.
        self._weakly_ordered = machine != "x86_64"
        if self._weakly_ordered:
            self._membarrier(_MEMBARRIER_REGISTER_PRIVATE_EXPEDITED)

    def wait(self, word: int, seen: int, timeout_s: float) -> None:
        """Sleep while the word's low half still equals that of ``seen``, until a wake, a signal or the timeout."""
        timespec = _Timespec(int(timeout_s), int(timeout_s % 1 * 1e9))
        address = self._base + word * 8
        result = self._syscall(self._number, address, _FUTEX_WAIT, seen & 0xFFFFFFFF, ctypes.addressof(timespec), None, 0)
        if result < 0 and (code := ctypes.get_errno()) not in (errno.EAGAIN, errno.EINTR, errno.ETIMEDOUT):
            raise OSError(code, os.strerror(code))

    def wake(self, word: int) -> None:
        """Wake everybody who sleeps on the word."""
        self._syscall(self._number, self._base + word * 8, _FUTEX_WAKE, _EVERYBODY, None, None, 0)

    def fence(self) -> None:
        """Order earlier stores before later stores, and earlier loads before later loads."""
        if self._weakly_ordered:
            self._membarrier(_MEMBARRIER_PRIVATE_EXPEDITED)

    def full_fence(self) -> None:
        """Order earlier stores before later loads as well."""
        if self._weakly_ordered:
            self._membarrier(_MEMBARRIER_PRIVATE_EXPEDITED)
        else:
            # Taking a lock is an atomic exchange, and on x86 every such instruction is a full fence.
            self._lock.acquire(blocking=False)
            self._lock.release()

    def _membarrier(self, command: int) -> None:
        if self._syscall(self._membarrier_number, command, 0, 0, None, None, 0) < 0:
            code = ctypes.get_errno()
            raise OSError(code, f"membarrier: {os.strerror(code)}")
