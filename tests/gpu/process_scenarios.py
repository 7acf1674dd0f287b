"""What ranks with a device of their own do in the tests of real processes. Each scenario returns plain values."""

from __future__ import annotations

import contextlib
import gc
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from ithaka.comm_ext.ulysses import cuda_member
from ithaka.comm_ext.ulysses.communicator import UlyssesCommunicator
from ithaka.comm_ext.ulysses.control_block import RankState
from ithaka.comm_ext.ulysses.cuda_calibration import Launch
from ithaka.comm_ext.ulysses.errors import UlyssesPeerError
from ithaka.comm_ext.ulysses.group import RankGroup
from ithaka.comm_ext.ulysses.plan import Direction
from ithaka.comm_ext.ulysses.rendezvous import Rendezvous
from tests.gpu.exchange_checks import (
    POISON,
    Case,
    call,
    check_alternation,
    check_cases,
    check_graphs,
    check_tagged_group,
    draw,
    mismatches,
)
from tests.gpu.loopback import only
from tests.parts_checks import CHECKS, check_ring
from tests.process.ulysses_scenarios import RankContext, fault_of

LAUNCHES = {"sm": Launch(32, 16, 0.0), "hybrid": Launch(16, 16, 0.5), "copy_engine": Launch(0, 16, 1.0)}
LONG_CYCLES = 600_000_000
"""About a third of a second: a stream that is certainly still busy when the test acts."""
LATE_CYCLES = 20_000_000
"""Longer than a rank's own writers dawdle: what it reads then is what the late rank has written so far."""


class Apart:
    """See exchange_checks.Together: ranks that share neither process nor GPU have nothing to arrange."""

    def meet(self) -> None:
        """See Together."""

    def alone(self) -> contextlib.AbstractContextManager[object]:
        """See Together."""
        return contextlib.nullcontext()


os.environ["CUDA_MODULE_LOADING"] = "LAZY"  # a rank has a process of its own, and starts at once


def take_device(context: RankContext) -> torch.device:
    """The rank's device; on a machine with one GPU all ranks share it, which only a test may do."""
    count = torch.cuda.device_count()
    device = torch.device("cuda", context.rank % count)
    torch.cuda.set_device(device)
    if count < context.num_ranks:
        original = cuda_member.CudaShare.card

        def card(self: cuda_member.CudaShare, *arguments: Any) -> dict[str, Any]:
            return {**original(self, *arguments), "uuid": str(context.rank)}

        patch.object(cuda_member.CudaShare, "card", card).start()
    return device


def open_on(context: RankContext, device: torch.device, group: RankGroup | None = None, **options: Any) -> UlyssesCommunicator:
    """A communicator on the rank's seat, or on another one."""
    launch = LAUNCHES[context.options.get("engine", "sm")]
    seat = group or RankGroup(context.rank, context.num_ranks, context.arena_fd, context.verdict_fd)
    return UlyssesCommunicator(
        seat, **{"max_bytes": 1 << 26, "timeout_s": 30.0, "device": device, "calibration": only(launch), **options}
    )


def lost(context: RankContext) -> dict[str, Any]:
    """Exchange until the group breaks. The victim stops at the phase of the options; the test kills or stops it there."""
    options, victim = context.options, context.options["victim"]
    phase = options["phase"]

    def here(name: str) -> None:
        if context.rank == victim and phase == name:
            context.pause(name)

    device = take_device(context)
    here("before_join")
    result: dict[str, Any] = {}
    communicator = None
    try:
        communicator = open_on(context, device, timeout_s=options["timeout_s"], join_timeout_s=options["join_timeout_s"])
        _exchange_until_broken(context, communicator, here)
        result["closed"] = True
    except UlyssesPeerError as error:
        result |= fault_of(error)
    if communicator is not None:
        if "code" in result:
            try:
                communicator.check()
            except UlyssesPeerError as error:
                result["again"] = fault_of(error) == {key: result[key] for key in ("code", "rank", "text")}
        communicator.close()
    torch.cuda.synchronize(device)
    result["device_works"] = int((torch.ones(1000, device=device) * 2).sum()) == 2000
    return result


def _exchange_until_broken(context: RankContext, communicator: UlyssesCommunicator, here: Callable[[str], None]) -> None:
    ranks, rank, phase = communicator.num_ranks, communicator.rank, context.options["phase"]
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    x = torch.ones(1, 512, 4 * ranks, 64, device=communicator.device)

    def exchange() -> torch.Tensor:
        return communicator.gather_heads(communicator.scatter_heads(x, tag="there"), tag="back")

    with torch.cuda.stream(stream):
        for _ in range(3):
            exchange()
        graph = torch.cuda.CUDAGraph()
        stream.synchronize()
        with torch.cuda.graph(graph, stream=stream):
            if rank == context.options["victim"] and phase == "in_a_replay":
                torch.cuda._sleep(LONG_CYCLES)  # type: ignore[no-untyped-call]
            exchange()
        communicator.check()
        here("between_calls")
        if phase == "holding_a_lease":
            lease = exchange()
            stream.synchronize()
            here(phase)
            del lease
        if phase == "in_a_call" and rank == context.options["victim"]:
            torch.cuda._sleep(LONG_CYCLES)  # type: ignore[no-untyped-call]
            exchange()
            here(phase)
        if phase == "in_a_wait" and rank != context.options["victim"]:
            context.pause("ready")  # the victim's kernel waits for this rank
        if phase == "in_a_wait" and rank == context.options["victim"]:
            exchange()
            here(phase)
        if phase == "in_a_replay":
            graph.replay()
            here(phase)
        if phase in ("before_close", "closing"):
            stream.synchronize()
            communicator.check()
            here("before_close")
            with patch.object(Rendezvous, "_enter", _paused_when_closing(here)):
                communicator.close()
            return
        while True:
            exchange()
            graph.replay()
            stream.synchronize()
            communicator.check()


def _paused_when_closing(here: Callable[[str], None]) -> Callable[[Rendezvous, RankState], None]:
    enter = Rendezvous._enter

    def entered(self: Rendezvous, state: RankState) -> None:
        enter(self, state)
        if state is RankState.CLOSING:
            here("closing")

    return entered


def probe(context: RankContext) -> dict[str, Any]:
    """A fresh context on every device: a kernel runs, and so much memory is free."""
    free_bytes = []
    for index in range(torch.cuda.device_count()):
        device = torch.device("cuda", index)
        assert int((torch.ones(1000, device=device) * 2).sum()) == 2000
        torch.cuda.synchronize(device)
    for index in range(torch.cuda.device_count()):
        free_bytes.append(torch.cuda.mem_get_info(index)[0])
    return {"free_bytes": free_bytes}


def all_checks(context: RankContext) -> dict[str, Any]:
    """Everything that loopback groups check, between real devices: cases, late ranks, tags, graphs with forked copies."""
    device = take_device(context)
    if "allocator" in context.options:
        torch.cuda.memory._set_allocator_settings(context.options["allocator"])

    def delay(turn: int) -> None:
        if turn % (3 * context.num_ranks) == 3 * context.rank:
            torch.cuda._sleep(200_000)  # type: ignore[no-untyped-call]

    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with open_on(context, device, max_bytes=1 << 28) as communicator, torch.cuda.stream(stream):
        check_cases(communicator, rounds=3)
        check_alternation(communicator, context.options["calls"], delay)
        check_tagged_group(communicator, 10)
        check_graphs(communicator, 40, delay, Apart())
        torch.cuda.synchronize()
        communicator.check()
    return {"good": True}


def parts(context: RankContext) -> dict[str, Any]:
    """Parts of heads, chunks, replicated rows, shared key heads, rings; by any backend."""
    device = take_device(context)

    def delay(turn: int) -> None:
        if turn % 4 == context.rank:
            torch.cuda._sleep(400_000)  # type: ignore[no-untyped-call]

    with open_on(context, device, max_bytes=1 << 28, backend=context.options["backend"]) as communicator:
        check_cases(communicator, rounds=1)
        for check in CHECKS:
            check(communicator)
        check_ring(communicator, delay)
        torch.cuda.synchronize()
        communicator.check()
        return {"backend": communicator.backend}


def permuted(context: RankContext) -> dict[str, Any]:
    """Ranks that see the devices in orders of their own."""
    os.environ["CUDA_VISIBLE_DEVICES"] = context.options["visible"][context.rank]
    device = torch.device("cuda", 0)
    torch.cuda.set_device(device)
    with open_on(context, device) as communicator:
        check_alternation(communicator, 60, lambda turn: None)
        torch.cuda.synchronize()
        communicator.check()
    return {"good": True}


def two_communicators(context: RankContext) -> dict[str, Any]:
    """Two groups of the same ranks, in turns, on two streams of each."""
    device = take_device(context)
    fds = socket.recv_fds(context.control, 16, 2)[1]
    second_seat = RankGroup.from_fds(rank=context.rank, num_ranks=context.num_ranks, fds=fds)
    with open_on(context, device) as first, open_on(context, device, second_seat) as second:
        streams = [torch.cuda.Stream() for _ in range(2)]  # type: ignore[no-untyped-call]
        wrong = torch.zeros(2, dtype=torch.int64, device=device)
        case = Case(Direction.SCATTER, 1, (300,) * context.num_ranks, (4,) * context.num_ranks, 128, torch.bfloat16)
        drawn = [draw(case, context.rank, device, seed) for seed in range(4)]
        torch.cuda.synchronize()
        for turn in range(100):
            for which, communicator in enumerate((first, second)):
                with torch.cuda.stream(streams[which]):
                    data = drawn[(turn + which) % 4]
                    got = call(communicator, case, data.x, "t")
                    wrong[which] += mismatches(got, data.wanted)
                    got.view(torch.uint8).fill_(POISON)
                    del got
        torch.cuda.synchronize()
        first.check()
        second.check()
        return {"wrong": wrong.tolist()}


def many_lives(context: RankContext) -> dict[str, Any]:
    """Communicators on groups that arrive one by one; descriptors, threads and device memory after a few and after all."""
    device = take_device(context)
    x = torch.ones(1, 64, 4, 64, device=device)

    def live(arena_fd: int, verdict_fd: int) -> None:
        with open_on(context, device, RankGroup(context.rank, context.num_ranks, arena_fd, verdict_fd)) as communicator:
            communicator.gather_heads(communicator.scatter_heads(x, tag="t"))
            communicator.scatter_qkv(x, x, x)
            torch.cuda.synchronize(device)
            communicator.check()

    def footprint() -> tuple[int, int, int]:
        gc.collect()
        torch.cuda.synchronize(device)
        return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task")), torch.cuda.mem_get_info(device)[0]

    live(context.arena_fd, context.verdict_fd)
    after_few = footprint()
    for number in range(context.options["lives"]):
        context.say(f"life {number}")
        live(*socket.recv_fds(context.control, 16, 2)[1])
        if number == 5:
            after_few = footprint()
    return {"after_few": after_few, "after_all": footprint()}


def stale_reads(context: RankContext) -> dict[str, Any]:
    """How many wrong bytes are read right after the wait, with an engine whose writers dawdle; see test_ulysses_stale_reads."""
    device = take_device(context)
    library = Path(context.options["library"])
    with (
        patch.object(cuda_member, "find_library", lambda: library),
        open_on(context, device, max_bytes=1 << 29) as communicator,
    ):
        tokens = 2048 if context.options["engine"] == "sm" else 16384  # copies have to last longer than a wait takes
        case = Case(Direction.SCATTER, 1, (tokens,) * context.num_ranks, (8,) * context.num_ranks, 128, torch.bfloat16)
        drawn = [draw(case, context.rank, device, seed) for seed in range(3)]
        wrong = torch.zeros((), dtype=torch.int64, device=device)
        for turn in range(context.options["calls"]):
            data = drawn[turn % 3]
            if turn % context.num_ranks == context.rank:
                torch.cuda._sleep(LATE_CYCLES)  # type: ignore[no-untyped-call]
            got = call(communicator, case, data.x, "t")
            wrong += mismatches(got, data.wanted)
            got.view(torch.uint8).fill_(POISON)
            del got
        torch.cuda.synchronize()
        communicator.check()
        return {"wrong": int(wrong)}


SCENARIOS: dict[str, Callable[[RankContext], dict[str, Any]]] = {
    "lost": lost,
    "probe": probe,
    "all_checks": all_checks,
    "parts": parts,
    "permuted": permuted,
    "two_communicators": two_communicators,
    "many_lives": many_lives,
    "stale_reads": stale_reads,
}
