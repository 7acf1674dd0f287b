"""Ranks as threads of this process, each on a stream of its own, all on one GPU."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import torch

from ithaka.comm_ext.ulysses.communicator import UlyssesCommunicator
from ithaka.comm_ext.ulysses.cuda_calibration import Calibration, Launch, Row
from ithaka.comm_ext.ulysses.group import GroupDescriptors, RankGroup

JOIN_DEADLINE_S = 40
T = TypeVar("T")


class Threads:
    """See exchange_checks.Together."""

    def __init__(self, num_ranks: int) -> None:
        self._barrier, self._lock = threading.Barrier(num_ranks, timeout=JOIN_DEADLINE_S), threading.Lock()

    def meet(self) -> None:
        """See Together."""
        self._barrier.wait()

    def alone(self) -> AbstractContextManager[object]:
        """See Together."""
        return self._lock


def only(launch: Launch) -> Calibration:
    """A table that makes every call this way."""
    return Calibration("test", (Row(2, 1 << 60, launch),))


def engines(num_ranks: int) -> dict[str, Calibration]:
    """Each engine with so few blocks that all ranks fit on one GPU at once."""
    remote = max(4, 64 // num_ranks)
    return {
        "sm": only(Launch(remote, 4, 0.0)),
        "hybrid": only(Launch(remote, 4, 0.5)),
        "copy_engine": only(Launch(0, 4, 1.0)),
    }


def on_every_seat(num_ranks: int, body: Callable[[RankGroup], T]) -> list[T | Exception]:
    """``body`` in one thread per rank, each on its own stream; what each returned or raised, by rank."""
    descriptors = GroupDescriptors.create(num_ranks)
    outcomes: list[T | Exception] = [RuntimeError("did not run")] * num_ranks

    def run(seat: RankGroup) -> None:
        try:
            with torch.cuda.device(0), torch.cuda.stream(torch.cuda.Stream()):  # type: ignore[no-untyped-call]
                outcomes[seat.rank] = body(seat)
        except Exception as error:
            outcomes[seat.rank] = error

    threads = [threading.Thread(target=run, args=(descriptors.seat(rank),), daemon=True) for rank in range(num_ranks)]
    descriptors.close()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(JOIN_DEADLINE_S)
        assert not thread.is_alive(), "a rank hangs"
    return outcomes


def on_every_rank(num_ranks: int, body: Callable[[UlyssesCommunicator], T], **options: Any) -> list[T]:
    """With a communicator that is closed afterwards; the first failure is raised."""

    def run(seat: RankGroup) -> T:
        options_of_rank = {"max_bytes": 1 << 28, "timeout_s": 10.0, "device": torch.device("cuda", 0), **options}
        with UlyssesCommunicator(seat, **options_of_rank) as communicator:
            result = body(communicator)
            torch.cuda.current_stream().synchronize()
            communicator.check()
            return result

    results = []
    outcomes = on_every_seat(num_ranks, run)
    failures = [outcome for outcome in outcomes if isinstance(outcome, Exception)]
    if failures:  # the cause, not the peers' complaint about it
        raise next((failure for failure in failures if isinstance(failure, AssertionError)), failures[0])
    for outcome in outcomes:
        assert not isinstance(outcome, Exception)
        results.append(outcome)
    return results
