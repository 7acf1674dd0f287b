"""The control socket between server and child: messages, descriptors, ends."""

from __future__ import annotations

import array
import os
import socket
import threading
from collections.abc import Iterator

import pytest

from ithaka.workers import contract, wire
from ithaka.workers.child_socket import MAX_DESCRIPTORS, ChildSocket, close_fds
from ithaka.workers.wire import WireError

BEAT = contract.Heartbeat(progress=1, busy=False)


@pytest.fixture
def ends() -> Iterator[tuple[ChildSocket, ChildSocket]]:
    ours, theirs = ChildSocket.pair()
    yield ours, theirs
    ours.close()
    theirs.close()


@pytest.fixture
def raw_end() -> Iterator[tuple[socket.socket, ChildSocket]]:
    raw, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    end = ChildSocket(other)
    yield raw, end
    raw.close()
    end.close()


def num_open_fds() -> int:
    return len(os.listdir("/proc/self/fd"))


def rights(fds: list[int]) -> list[tuple[int, int, array.array[int]]]:
    return [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))]


def test_messages_arrive_whole_and_in_order(ends: tuple[ChildSocket, ChildSocket]) -> None:
    ours, theirs = ends
    sent = [contract.GrantFrames("s", n) for n in range(20)]
    for message in sent:
        ours.send(message)
    received = [theirs.receive() for _ in sent]
    assert received == [(message, []) for message in sent]


def test_descriptors_ride_beside_a_message_in_order(ends: tuple[ChildSocket, ChildSocket]) -> None:
    ours, theirs = ends
    files = [os.memfd_create(f"file{n}") for n in range(MAX_DESCRIPTORS)]
    for n, fd in enumerate(files):
        os.write(fd, bytes([n]))
    ours.send(contract.AttachFrames(7), files)
    close_fds(files)
    received = theirs.receive()
    assert received is not None
    message, fds = received
    assert message == contract.AttachFrames(7)
    assert [os.pread(fd, 1, 0)[0] for fd in fds] == list(range(MAX_DESCRIPTORS))
    assert not any(os.get_inheritable(fd) for fd in fds)
    close_fds(fds)


def test_the_largest_message_fits_one_datagram(ends: tuple[ChildSocket, ChildSocket]) -> None:
    ours, theirs = ends
    message = contract.StartSession("s", 1, "p" * (wire.MAX_MESSAGE_BYTES - 64))
    ours.send_nowait(message)
    assert theirs.receive() == (message, [])


def test_nowait_says_when_it_would_wait(ends: tuple[ChildSocket, ChildSocket]) -> None:
    ours, theirs = ends
    with pytest.raises(BlockingIOError):
        theirs.receive_nowait()
    num_sent = 0
    with pytest.raises(BlockingIOError):
        while True:
            ours.send_nowait(contract.GrantFrames("s", num_sent))
            num_sent += 1
    for n in range(num_sent):
        assert theirs.receive_nowait() == (contract.GrantFrames("s", n), [])
    with pytest.raises(BlockingIOError):
        theirs.receive_nowait()


def test_the_end_comes_after_what_the_peer_sent(ends: tuple[ChildSocket, ChildSocket]) -> None:
    ours, theirs = ends
    ours.send(contract.Shutdown())
    theirs.send(BEAT)
    theirs.close()  # with Shutdown unread, which the kernel reports as a reset
    assert ours.receive() == (BEAT, [])
    assert ours.receive() is None
    assert ours.receive_nowait() is None
    with pytest.raises(ConnectionError):
        ours.send(BEAT)


def test_close_wakes_a_blocked_receiver(ends: tuple[ChildSocket, ChildSocket]) -> None:
    ours, _ = ends
    received: list[object] = []
    receiver = threading.Thread(target=lambda: received.append(ours.receive()))
    receiver.start()
    ours.close()
    receiver.join(10)
    assert not receiver.is_alive()
    assert received == [None]
    ours.close()


def test_many_threads_send_whole_messages(ends: tuple[ChildSocket, ChildSocket]) -> None:
    ours, theirs = ends

    def send(name: str) -> None:
        for n in range(200):
            ours.send(contract.GrantFrames(name, n))

    senders = [threading.Thread(target=send, args=(f"t{n}",)) for n in range(4)]
    for sender in senders:
        sender.start()
    seen: dict[str, list[int]] = {}
    for _ in range(800):
        received = theirs.receive()
        assert received is not None and isinstance(received[0], contract.GrantFrames)
        seen.setdefault(received[0].session_id, []).append(received[0].through_seq)
    for sender in senders:
        sender.join()
    assert seen == {f"t{n}": list(range(200)) for n in range(4)}


@pytest.mark.parametrize("data", [b"\x00", b"\xff" * 40, wire.encode(BEAT)[:-1], wire.encode(BEAT) + b"\x00"])
def test_bytes_that_are_no_message_are_refused(raw_end: tuple[socket.socket, ChildSocket], data: bytes) -> None:
    raw, end = raw_end
    raw.send(data)
    raw.send(wire.encode(BEAT))
    with pytest.raises(WireError):
        end.receive()
    assert end.receive() == (BEAT, [])


def test_a_datagram_beyond_the_limit_is_refused(raw_end: tuple[socket.socket, ChildSocket]) -> None:
    raw, end = raw_end
    raw.send(b"\x93" * (wire.MAX_MESSAGE_BYTES + 2))
    with pytest.raises(WireError, match="cut off"):
        end.receive()


@pytest.mark.parametrize(
    ("message", "num_fds"),
    [(BEAT, 1), (contract.AttachFrames(1), MAX_DESCRIPTORS + 30), (None, 2)],
    ids=["kind without descriptors", "more than fit", "no message"],
)
def test_descriptors_of_a_refused_message_are_closed(
    raw_end: tuple[socket.socket, ChildSocket], message: wire.Message | None, num_fds: int
) -> None:
    raw, end = raw_end
    before = num_open_fds()
    raw.sendmsg([wire.encode(message) if message else b"junk"], rights([0] * num_fds))
    with pytest.raises(WireError):
        end.receive()
    assert num_open_fds() == before


def test_send_refuses_descriptors_that_a_kind_has_not(ends: tuple[ChildSocket, ChildSocket]) -> None:
    ours, theirs = ends
    with pytest.raises(WireError, match="carries no descriptors"):
        ours.send(BEAT, [0])
    with pytest.raises(WireError, match="at most"):
        ours.send(contract.AttachFrames(1), [0] * (MAX_DESCRIPTORS + 1))
    with pytest.raises(BlockingIOError):
        theirs.receive_nowait()


def test_only_a_seqpacket_socket_is_adopted() -> None:
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with pytest.raises(ValueError, match="SEQPACKET"):
            ChildSocket.from_fd(left.fileno())
        os.fstat(left.fileno())  # still the caller's
    finally:
        left.close()
        right.close()
