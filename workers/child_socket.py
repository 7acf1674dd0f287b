"""One end of the SEQPACKET socketpair between the server and a child, or a leader and a follower: messages and descriptors.

A datagram is one message of ``wire``; descriptors ride beside it (SCM_RIGHTS). Blocking calls serve a child's threads,
``*_nowait`` serve an event loop that watches ``fileno``.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import os
import signal
import socket
import threading
from collections.abc import Iterable, Iterator, Sequence

from ithaka.workers import contract, wire
from ithaka.workers.stages.contract import AttachLatents
from ithaka.workers.wire import Message, WireError

MAX_DESCRIPTORS = 64
"""Beside one message; the kernel's own limit is 253."""

_CARRIERS = (contract.ConfigureRank, contract.AttachFrames, contract.AttachPackets, AttachLatents)
_FD_BYTES = array.array("i").itemsize
_ANCILLARY_BYTES = socket.CMSG_SPACE(MAX_DESCRIPTORS * _FD_BYTES)
_PR_SET_PDEATHSIG = 1

# As plain numbers: Python's flags build an object for each operation, which shows at every message.
_DONTWAIT, _NOSIGNAL, _CMSG_CLOEXEC = int(socket.MSG_DONTWAIT), int(socket.MSG_NOSIGNAL), int(socket.MSG_CMSG_CLOEXEC)
_CUT_OFF = int(socket.MSG_TRUNC | socket.MSG_CTRUNC)


class ChildSocket:
    """Owns ``sock``, a connected AF_UNIX SEQPACKET socket. Any thread may send; one thread at a time receives."""

    def __init__(self, sock: socket.socket) -> None:
        if sock.family != socket.AF_UNIX or sock.type != socket.SOCK_SEQPACKET:
            raise ValueError(f"a control socket is AF_UNIX SEQPACKET, not {sock.family.name} {sock.type.name}")
        # Blocking or not is chosen per call (MSG_DONTWAIT), so that one end can serve both kinds of callers.
        sock.setblocking(True)
        self._sock = sock
        self._send_lock = threading.Lock()

    @classmethod
    def pair(cls) -> tuple[ChildSocket, ChildSocket]:
        """Two connected ends."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        return cls(ours), cls(theirs)

    @classmethod
    def from_fd(cls, fd: int) -> ChildSocket:
        """Adopt an inherited or received descriptor. Raises OSError or ValueError when it is no such socket."""
        sock = socket.socket(fileno=fd)
        try:
            sock.set_inheritable(False)
            return cls(sock)
        except BaseException:
            sock.detach()
            raise

    def fileno(self) -> int:
        """The descriptor, or -1 after close."""
        return self._sock.fileno()

    def detach(self) -> int:
        """Give the descriptor to the caller, e.g. to send it to a child; this end is closed afterwards."""
        return self._sock.detach()

    def send(self, message: Message, fds: Sequence[int] = ()) -> None:
        """Send one message; waits while the peer's queue is full. The caller keeps its ``fds``.

        Raises WireError for what can't be encoded, ConnectionError when the peer is gone.
        """
        self._send(message, fds, 0)

    def send_nowait(self, message: Message, fds: Sequence[int] = ()) -> None:
        """``send`` that raises BlockingIOError instead of waiting; then nothing was sent."""
        self._send(message, fds, _DONTWAIT)

    def receive(self) -> tuple[Message, list[int]] | None:
        """The next message with the descriptors beside it, which now belong to the caller; None when the peer is
        gone or this end is closed.

        Raises WireError for a datagram that is no message, is cut off, or carries descriptors where its kind has none;
        whatever rode beside it is closed.
        """
        return self._receive(0)

    def receive_nowait(self) -> tuple[Message, list[int]] | None:
        """``receive`` that raises BlockingIOError instead of waiting."""
        return self._receive(_DONTWAIT)

    def pending(self) -> Iterator[tuple[Message, list[int]]]:
        """What has come by now, one after the other, as ``receive``; more may come meanwhile.

        Raises ConnectionError at the other end's end, WireError.
        """
        while True:
            try:
                received = self.receive_nowait()
            except BlockingIOError:
                return
            if received is None:
                raise ConnectionError("the other process closed the control socket")
            yield received

    def close(self) -> None:
        """Idempotent. A thread blocked in ``receive`` on this end wakes up with None.

        The connection ends for a process that inherited this socket as well; to hand one over, ``detach``.
        """
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()

    def _send(self, message: Message, fds: Sequence[int], flags: int) -> None:
        if fds and not isinstance(message, _CARRIERS):
            raise WireError(f"{type(message).__name__} carries no descriptors, {len(fds)} given")
        if len(fds) > MAX_DESCRIPTORS:
            raise WireError(f"{len(fds)} descriptors beside {type(message).__name__}; at most {MAX_DESCRIPTORS} fit")
        data = wire.encode(message)
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        if flags & _DONTWAIT:
            # Another thread may wait in send with the lock held: for an event loop that is a full queue as well.
            if not self._send_lock.acquire(blocking=False):
                raise BlockingIOError("another thread is sending")
        else:
            self._send_lock.acquire()
        try:
            self._sock.sendmsg([data], ancillary, flags | _NOSIGNAL)
        finally:
            self._send_lock.release()

    def _receive(self, flags: int) -> tuple[Message, list[int]] | None:
        while True:
            try:
                data, ancillary, message_flags, _ = self._sock.recvmsg(
                    wire.MAX_MESSAGE_BYTES + 1, _ANCILLARY_BYTES, flags | _CMSG_CLOEXEC
                )
                break
            except ConnectionResetError:
                # The peer died with our messages unread. The kernel says so once, before what it sent us is taken: go on
                # to those, the end comes after them.
                continue
            except OSError:
                if self._sock.fileno() < 0:  # closed by another thread
                    return None
                raise
        fds = _descriptors(ancillary)
        try:
            if message_flags & _CUT_OFF:
                raise WireError("a message was cut off: too many bytes or too many descriptors")
            if not data:
                return None
            message = wire.decode(data)
            if fds and not isinstance(message, _CARRIERS):
                raise WireError(f"{type(message).__name__} carries no descriptors, {len(fds)} came")
        except WireError:
            close_fds(fds)
            raise
        return message, fds


def close_fds(fds: Iterable[int]) -> None:
    """Close received descriptors that nobody wants."""
    for fd in fds:
        with contextlib.suppress(OSError):
            os.close(fd)


def guard_parent(parent_pid: int) -> None:
    """Tie this process to the one that started it: the kernel kills it when the parent dies, and SIGINT is ignored.

    Call first thing in a child's main thread. The kernel watches the parent's *thread* that forked, so a server starts its
    children from a thread that lives as long as the process. Exits at once, quietly, when the parent is already gone.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"prctl(PR_SET_PDEATHSIG): {os.strerror(code)}")
    # Checked after the request, so that a parent that died in between is not missed.
    if os.getppid() != parent_pid:
        raise SystemExit(1)


def _descriptors(ancillary: Iterable[tuple[int, int, bytes]]) -> list[int]:
    fds = array.array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(data[: len(data) - len(data) % _FD_BYTES])
    return list(fds)
