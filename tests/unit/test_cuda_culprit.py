"""Who is named when ranks wait for each other on streams of their own: the one that all wait for, not one that waits itself."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.gpu.loopback import LaneStruct, nothing_collected
from tests.unit.cuda_emulation import pretend_devices
from tests.unit.ulysses_loopback import on_every_rank, on_every_seat

from ithaka.comm_ext.ulysses.communicator import UlyssesCommunicator
from ithaka.comm_ext.ulysses.cuda_arena import Arena
from ithaka.comm_ext.ulysses.cuda_calibration import Calibration, Launch, Row
from ithaka.comm_ext.ulysses.cuda_library import CudaLibrary
from ithaka.comm_ext.ulysses.errors import UlyssesErrorCode, UlyssesInputError, UlyssesPeerError
from ithaka.comm_ext.ulysses.group import RankGroup

LAUNCHES = {"sm": Launch(2, 1, 0.0), "hybrid": Launch(1, 1, 0.5), "copy_engine": Launch(0, 1, 1.0)}
AHEAD, WAITING, AWAY = 2, 0, 1
TIMEOUT_S = 1.5


class Streams:
    """The current stream of each thread that was given one: a thread of the CPU that works through what is issued."""

    def __init__(self, library: CudaLibrary) -> None:
        self._library = library
        self._lanes: list[int] = []
        self._own = threading.local()

    def give(self) -> None:
        """This thread calls no longer wait for what they issue."""
        lane = self._library.create_lane(0)
        self._lanes.append(lane)
        self._own.stream = LaneStruct.from_address(lane).stream

    def current(self, device: int) -> int | None:
        """In place of torch's."""
        stream: int | None = getattr(self._own, "stream", None)
        return stream

    def finish(self) -> None:
        """Return when all is done that this thread has issued."""
        self._library.finish(0, self._own.stream)

    def close(self) -> None:
        """Nothing is under way any more."""
        for lane in self._lanes:
            self._library.destroy_lane(0, lane)


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch, engine: Path) -> Iterator[Streams]:
    pretend_devices(monkeypatch, engine)
    made = Streams(CudaLibrary(engine))
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", made.current, raising=False)
    yield made
    made.close()


@pytest.mark.parametrize("launch", LAUNCHES.values(), ids=LAUNCHES)
def test_a_rank_that_waits_on_its_device_is_not_named_by_one_whose_host_ran_ahead(streams: Streams, launch: Launch) -> None:
    """The one ahead wants to meet the others over a new kind of call while its device has not done the calls before, and
    lost most of its patience there with one that was merely slow."""
    calibration = Calibration("test", (Row(2, 1 << 60, launch),))
    met = threading.Barrier(3)

    def body(seat: RankGroup) -> UlyssesPeerError:
        options: dict[str, Any] = {"max_bytes": 1 << 20, "timeout_s": TIMEOUT_S, "device": "cuda:0", "calibration": calibration}
        with UlyssesCommunicator(seat, **options) as communicator:
            streams.give()
            x = torch.zeros(1, 4, 3, 8)
            communicator.scatter_heads(x, tag="t")
            streams.finish()
            met.wait()
            if communicator.rank != AHEAD:
                threading.Event().wait(0.6 * TIMEOUT_S)
            with pytest.raises(UlyssesPeerError) as caught:
                communicator.scatter_heads(x, tag="t")
                if communicator.rank != AWAY:
                    communicator.scatter_heads(x, tag="t")
                if communicator.rank == AHEAD:
                    communicator.scatter_heads(x, tag="new")
                while True:
                    communicator.check()
            streams.finish()
            met.wait()
            return caught.value

    for fault in on_every_seat(3, body):
        assert isinstance(fault, UlyssesPeerError), fault
        assert (fault.code, fault.rank) == (UlyssesErrorCode.PEER_TIMED_OUT, AWAY)


def test_an_arena_behind_a_caught_error_ends_before_ranks_wait_for_each_other(
    streams: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU its end waits for whatever runs there, and with it the rank whose thread happened to collect it."""
    ends: list[threading.Thread] = []
    end = Arena.__del__

    def watched(self: Arena) -> None:
        ends.append(threading.current_thread())
        end(self)

    gc.collect()
    monkeypatch.setattr(Arena, "__del__", watched)

    def overrun(communicator: UlyssesCommunicator) -> None:
        x = torch.zeros(1, 4, 2, 8)
        held = [communicator.scatter_heads(x, tag="t") for _ in range(2)]
        with pytest.raises(UlyssesInputError) as caught:
            communicator.scatter_heads(x, tag="t")
        assert caught.value.code is UlyssesErrorCode.LEASE_OVERRUN
        del held

    gc.disable()
    try:
        assert on_every_rank(2, overrun, device="cuda:0") == [None, None]
        assert not ends, "kept by the error that was caught"
    finally:
        gc.enable()
    with nothing_collected():
        assert ends == [threading.current_thread()] * 2
        assert not gc.isenabled()
    assert gc.isenabled()
