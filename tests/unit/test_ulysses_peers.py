"""Watching the peers' processes: whatever ended them, and from whichever thread one looks."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

from ithaka.comm_ext.ulysses.peers import PeerWatch, ProcessIdentity


def test_watch_sees_a_zombie_a_reaped_process_and_a_reused_pid() -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    with open(f"/proc/{process.pid}/stat") as stat:
        start_ticks = int(stat.read().rpartition(")")[2].split()[19])
    identity = ProcessIdentity(process.pid, start_ticks)
    watch = PeerWatch({3: identity})
    assert watch.dead() == frozenset()
    assert watch.describe(3) == f"pid {process.pid}, running"
    reused = PeerWatch({3: ProcessIdentity(process.pid, start_ticks - 1)})
    assert reused.dead() == {3}
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # a zombie: ended, not reaped
    assert watch.dead() == {3}
    assert watch.dead() == {3}
    process.communicate()
    gone = PeerWatch({3: identity})
    assert gone.dead() == {3}
    assert gone.describe(3) == f"pid {process.pid}, gone"
    for each in (watch, reused, gone):
        each.close()
        each.close()


def test_threads_may_look_at_once_while_peers_end_and_the_watch_closes() -> None:
    processes = [subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) for _ in range(3)]
    identities = {}
    for rank, process in enumerate(processes):
        with open(f"/proc/{process.pid}/stat") as stat:
            identities[rank] = ProcessIdentity(process.pid, int(stat.read().rpartition(")")[2].split()[19]))
    watch = PeerWatch(identities)
    closed, failures = threading.Event(), []

    def look() -> None:
        try:
            while not closed.is_set():
                watch.dead()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=look) for _ in range(4)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # so that threads meet inside
    try:
        for thread in threads:
            thread.start()
        for rank, process in enumerate(processes):
            process.kill()
            process.communicate()
            assert watch.dead() >= set(range(rank + 1))
            for _ in range(300):
                watch.dead()
        watch.close()
        assert watch.dead() == {0, 1, 2}  # what was seen stays; the closed descriptors are not looked at
    finally:
        closed.set()
        for thread in threads:
            thread.join()
        sys.setswitchinterval(interval)
    assert failures == []


def test_own_identity_is_seen_alive() -> None:
    watch = PeerWatch({0: ProcessIdentity.own()})
    assert watch.dead() == frozenset()
    watch.close()
