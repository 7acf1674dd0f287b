"""The encode process dies, stops, fails, or loses its server at every step of a frame."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
from tests.process.encode_rig import WAIT_S, Encode, Packet, Rig, decode, read_number, samples

from ithaka.workers import contract
from ithaka.workers.child_socket import ChildSocket

POINTS = ("encode.taken", "encode.encoded", "encode.published")


@pytest.fixture
def stack() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as stack:
        yield stack


@pytest.fixture
def rig(stack: contextlib.ExitStack) -> Rig:
    return Rig(stack)


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("point", POINTS)
def test_a_fresh_encode_goes_on_where_a_killed_one_stopped(rig: Rig, point: str, count: int) -> None:
    dead = rig.start(faults=[f"{point}:{count}:kill"])
    dead.open("a")
    for seq in range(1, 5):
        rig.publish("a", seq)
    assert dead.wait() == -signal.SIGKILL

    fresh = rig.start()  # on the very same channels
    fresh.open("a")
    rig.publish("a", 5)
    packets: list[Packet] = []
    while not packets or packets[-1][0].seq < 5:
        packets.append(rig.take())
    seqs = [header.seq for header, _ in packets]
    # Nothing is missing; at most what was not released comes twice.
    assert sorted(set(seqs)) == [1, 2, 3, 4, 5]
    restart = next(number for number in range(len(packets) - 1, -1, -1) if packets[number][0].key)
    assert seqs[restart:] == list(range(seqs[restart], 6))
    before, after = packets[:restart], packets[restart:]
    assert [read_number(samples(frame)) for frame in decode(after)] == seqs[restart:]
    assert [read_number(samples(frame)) for frame in decode(before)] == seqs[:restart] if before else restart == 0
    rig.wait_for_free(4)


@pytest.mark.parametrize("point", POINTS)
def test_a_stopped_encode_is_silent_and_goes_on(rig: Rig, point: str) -> None:
    encode = rig.start(faults=[f"{point}:2:stop"])
    encode.open("a")
    for seq in range(1, 5):
        rig.publish("a", seq)
    os.waitid(os.P_PID, encode.process.pid, os.WSTOPPED | os.WNOWAIT)
    encode.process.send_signal(signal.SIGCONT)
    packets = [rig.take() for _ in range(4)]
    assert [read_number(samples(frame)) for frame in decode(packets)] == [1, 2, 3, 4]


@pytest.mark.parametrize("point", ["encode.encoded", "encode.published"])
def test_what_goes_wrong_in_a_stream_ends_that_stream_as_a_report(rig: Rig, point: str) -> None:
    encode = rig.start(faults=[f"{point}:2:raise"])
    encode.open("a")
    for seq in range(1, 5):
        rig.publish("a", seq)
    failed = encode.hear(contract.EncoderFailed)
    assert (failed.session_id, failed.code) == ("a", "encode_failed")
    rig.wait_for_free(4)
    encode.open("b")
    rig.publish("b", 1)
    while rig.take()[0].session_id != "b":
        pass


def test_what_goes_wrong_in_the_main_thread_ends_the_process(rig: Rig) -> None:
    encode = rig.start(faults=["encode.taken:1:raise"])
    encode.open("a")
    rig.publish("a", 1)
    assert encode.wait() == 1


@pytest.mark.parametrize("is_streaming", [False, True])
def test_a_server_that_is_gone_takes_encode_along(stack: contextlib.ExitStack, is_streaming: bool) -> None:
    rig = Rig(stack, num_packet_slots=1)
    encode = rig.start()
    encode.open("a")
    if is_streaming:  # with a thread that waits for a packet slot
        for seq in (1, 2, 3):
            rig.publish("a", seq)
        while (beat := encode.hear(contract.Heartbeat)).progress != 1 or not beat.busy:
            pass
    encode.control.close()
    assert encode.wait() == 1


def test_a_killed_parent_takes_encode_along() -> None:
    code = """
import os, subprocess, sys
from ithaka.workers import contract
from ithaka.workers.child_socket import ChildSocket
ours, theirs = ChildSocket.pair()
fd = theirs.detach()
arguments = ["--control-fd", str(fd), "--parent-pid", str(os.getpid())]
# The child gets our end of the pair as well, so that only the death itself can tell it.
child = subprocess.Popen([sys.executable, "-m", contract.ENCODE_ENTRY, *arguments], pass_fds=[fd, ours.fileno()])
ours.send(contract.ConfigureEncode("encode-0", 20, "veryfast", 2.0, 60.0))
assert ours.receive()[0] == contract.EncodeReady()
print(child.pid, flush=True)
os.read(0, 1)
"""
    parent = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert parent.stdin is not None and parent.stdout is not None
    with parent.stdin, parent.stdout:
        child = os.pidfd_open(int(parent.stdout.readline()))
        try:
            assert not select.select([child], [], [], 0)[0]
            parent.kill()
            parent.wait()
            assert select.select([child], [], [], WAIT_S)[0], "encode outlived its parent"
        finally:
            os.close(child)


def _start_with(parent_pid: int) -> tuple[ChildSocket, subprocess.Popen[bytes]]:
    ours, theirs = ChildSocket.pair()
    fd = theirs.detach()
    arguments = ["--control-fd", str(fd), "--parent-pid", str(parent_pid)]
    process = subprocess.Popen([sys.executable, "-m", contract.ENCODE_ENTRY, *arguments], pass_fds=[fd], stderr=subprocess.PIPE)
    os.close(fd)
    return ours, process


def test_a_foreign_parent_is_refused() -> None:
    ours, process = _start_with(os.getppid())
    assert process.communicate(timeout=WAIT_S)[1] == b""
    assert process.returncode == 1
    ours.close()


def test_the_first_message_must_be_the_configuration() -> None:
    ours, process = _start_with(os.getpid())
    ours.send(contract.Shutdown())
    assert b"must be ConfigureEncode" in process.communicate(timeout=WAIT_S)[1]
    assert process.returncode == 2
    ours.close()


@pytest.mark.parametrize(
    "command",
    [contract.GrantFrames("a", 1), contract.DetachFrames(77)],
    ids=lambda command: type(command).__name__,
)
def test_a_server_that_breaks_the_contract_ends_encode(stack: contextlib.ExitStack, command: contract.Command) -> None:
    encode = Encode()
    stack.callback(encode.close)
    encode.hear(contract.EncodeReady)
    encode.tell(command)
    assert encode.wait() == 1


def test_a_second_packet_channel_or_wrong_number_ends_encode(rig: Rig, stack: contextlib.ExitStack) -> None:
    encode = rig.start()
    encode.control.send(contract.AttachPackets(5), rig.packets.describe())
    assert encode.wait() == 1
    other = Encode()
    stack.callback(other.close)
    other.control.send(contract.AttachFrames(99), rig.frames.describe())
    assert other.wait() == 1


def test_ctrl_c_is_the_servers_business(rig: Rig) -> None:
    encode = rig.start()
    encode.open("a")
    encode.process.send_signal(signal.SIGINT)
    rig.publish("a", 1)
    assert rig.take()[0].seq == 1
    encode.tell(contract.Shutdown())
    assert encode.wait() == 0
