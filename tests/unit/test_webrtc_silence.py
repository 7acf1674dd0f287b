"""A receiver that says nothing any more is given up once, and one that says anything never."""

from __future__ import annotations

from tests.fakes import FakeTimers

from ithaka.server.transports.webrtc.silence import LOOK_INTERVAL_S, MAX_SILENCE_S, SilenceWatch


class Rig:
    def __init__(self) -> None:
        self.timers = FakeTimers()
        self.num_heard = self.num_lost = self.num_asked = 0
        self.watch = SilenceWatch(self.timers, num_heard=lambda: self.num_heard, ask=self._ask, on_silence=self._lose)

    def _ask(self) -> None:
        self.num_asked += 1

    def _lose(self) -> None:
        self.num_lost += 1


def test_silence_is_told_once() -> None:
    rig = Rig()
    rig.timers.advance(MAX_SILENCE_S - LOOK_INTERVAL_S)
    assert rig.num_lost == 0
    rig.timers.advance(LOOK_INTERVAL_S)
    assert rig.num_lost == 1
    rig.timers.advance(10 * MAX_SILENCE_S)
    assert rig.num_lost == 1 and rig.timers.num_pending == 0


def test_one_datagram_now_and_then_is_enough() -> None:
    rig = Rig()
    for _ in range(20):
        rig.timers.advance(MAX_SILENCE_S - LOOK_INTERVAL_S)
        rig.num_heard += 1
    assert rig.num_lost == 0
    rig.timers.advance(MAX_SILENCE_S + LOOK_INTERVAL_S)
    assert rig.num_lost == 1


def test_one_that_is_not_heard_is_asked_at_every_look() -> None:
    rig = Rig()
    rig.timers.advance(3 * LOOK_INTERVAL_S)
    assert rig.num_asked == 3
    rig.num_heard += 1
    rig.timers.advance(LOOK_INTERVAL_S)
    assert rig.num_asked == 3, "one that was heard is not"
    rig.timers.advance(LOOK_INTERVAL_S)
    assert rig.num_asked == 4 and rig.watch.heard_at_s == rig.timers.now_s() - LOOK_INTERVAL_S


def test_nothing_is_told_after_the_end() -> None:
    rig = Rig()
    rig.watch.cancel()
    rig.timers.advance(10 * MAX_SILENCE_S)
    assert rig.num_lost == 0 and rig.timers.num_pending == 0
