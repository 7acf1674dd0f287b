"""What the device found out becomes the group's fault, and the group's fault stops the device."""

from __future__ import annotations

import threading
from enum import IntEnum

from ithaka.comm_ext.ulysses.cuda_arena import HostWords
from ithaka.comm_ext.ulysses.errors import UlyssesClosedError, UlyssesError, UlyssesErrorCode, UlyssesPeerError
from ithaka.comm_ext.ulysses.rendezvous import Rendezvous

_WATCH_PERIOD_S = 0.02


class DeviceFault(IntEnum):
    """Codes in the device's words (ulysses_abi.h)."""

    TIMED_OUT = 1
    DISAGREED = 2
    ABORTED = 3


def pack(fault: DeviceFault, culprit: int) -> int:
    """The word for a fault."""
    return fault << 8 | culprit


def unpack(word: int) -> tuple[DeviceFault, int]:
    """The fault in a word."""
    return DeviceFault(word >> 8), word & 0xFF


class FaultBridge:
    """Joins the rendezvous, where ranks agree on the first fault, with the words that kernels read and write.

    A thread looks every 20 ms for ended processes and for faults of either side, so that a kernel that waits for a dead peer
    ends within 100 ms even while this rank's own thread is blocked in a synchronisation. It makes no CUDA call.
    """

    def __init__(self, rendezvous: Rendezvous, words: HostWords, timeout_s: float) -> None:
        self._rendezvous, self._timeout_s = rendezvous, timeout_s
        self._words = words.words
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="ulysses-watch", daemon=True)
        self._thread.start()

    def ensure_sound(self) -> None:
        """Raise the group's fault, the device's included; cheap enough for every call."""
        self._rendezvous.ensure_sound()
        if self._words[HostWords.FAULT]:
            with self._lock:
                self._report()

    def check(self) -> None:
        """As ``ensure_sound``, and look for ended processes."""
        self.ensure_sound()
        with self._lock:
            self._rendezvous.check()

    def stop_device(self, culprit: int) -> None:
        """Let every wait of this rank's kernels end now."""
        if not self._words[HostWords.ABORT]:
            self._words[HostWords.ABORT] = pack(DeviceFault.ABORTED, culprit)

    def close(self) -> None:
        """Stop looking."""
        self._stop.set()
        self._thread.join()

    def _report(self) -> None:
        """Tell the group what the device found, and raise what the group agrees on."""
        fault, culprit = unpack(self._words[HostWords.FAULT])
        self._rendezvous.report(*_in_words(fault, culprit, self._timeout_s))

    def _watch(self) -> None:
        while not self._stop.wait(_WATCH_PERIOD_S):
            try:
                self.check()
            except UlyssesPeerError as error:
                self.stop_device(error.rank)
                return
            except UlyssesClosedError:
                return
            except UlyssesError:
                continue
            except Exception as error:  # a watch that ended unseen would leave the device without one
                self._rendezvous.abort(f"its watch failed: {type(error).__name__}: {error}")


def _in_words(fault: DeviceFault, culprit: int, timeout_s: float) -> tuple[UlyssesErrorCode, int, str]:
    if fault is DeviceFault.TIMED_OUT:
        return UlyssesErrorCode.PEER_TIMED_OUT, culprit, f"rank {culprit} did not arrive on the device within {timeout_s:g} s"
    if fault is DeviceFault.DISAGREED:
        text = f"rank {culprit} made another call: shapes, splits, dtype, tag and order must be the same on all ranks"
        return UlyssesErrorCode.PEER_DISAGREED, culprit, text
    return UlyssesErrorCode.PEER_ABORTED, culprit, f"rank {culprit} broke the group"
