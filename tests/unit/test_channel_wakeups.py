"""Sides that sleep until they are woken, and are woken early by claims: nobody sleeps for ever, whatever comes in between."""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.channel_turns import KilledError, SteppedWords, Turns

from ithaka.comm_ext.channel import progress, ring
from ithaka.comm_ext.channel.base import ChannelClosedError
from ithaka.comm_ext.channel.fence import make_fence
from ithaka.comm_ext.channel.layout import MIN_SLOTS_FOR_NEWEST, WORD_ANNOUNCED, WORD_CLOSED, WORD_PUBLISHED, Geometry

NUM_MESSAGES = 5
NUM_LOOKS = 3
"""Of a consumer that stays awake for what was announced."""


class Event:
    """An eventfd."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self.is_set = False

    def set(self) -> None:
        self._turns.step()
        self.is_set = True

    def sleep(self) -> None:
        """Until it is set; it is cleared then."""
        self._turns.step()
        while not self.is_set:
            self._turns.step()
        self._turns.step()
        self.is_set = False


@dataclass
class World:
    turns: Turns
    geometry: Geometry
    discarded: set[int]
    num_ahead: int
    """Slots that the producer claims at once."""
    num_abandoned: int
    """Slots that it claims first and never publishes."""
    seen: dict[int, list[int]] = field(default_factory=dict)
    num_awake: dict[int, int] = field(default_factory=dict)
    ended: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.words = SteppedWords(self.geometry.num_words, self.turns)
        self.free = Event(self.turns)
        self.ready = [Event(self.turns) for _ in range(self.geometry.num_consumers)]

    def produce(self) -> None:
        try:
            producer = ring.ProducerRing(self.words, self.geometry, make_fence())
            for _ in range(self.num_abandoned):
                assert self.claim(producer) is not None
            claimed: list[int] = []
            for sequence in range(1, NUM_MESSAGES + 1):
                while len(claimed) < self.num_ahead and (slot := self.claim(producer)) is not None:
                    claimed.append(slot)
                while not claimed:
                    self.free.sleep()
                    claimed += [slot] if (slot := self.claim(producer)) is not None else []
                producer.publish(claimed.pop(0), is_discarded=sequence in self.discarded)
                self.wake()
            ring.close_producer(self.words, make_fence())
            self.wake()
        except KilledError:
            self.words.words[WORD_CLOSED] = 1  # what the owner does for a dead producer
            for event in self.ready:
                event.is_set = True
            raise

    def claim(self, producer: ring.ProducerRing) -> int | None:
        slot = producer.claim()
        if slot is not None:
            producer.announce()
            self.wake()
        return slot

    def wake(self) -> None:
        for event in self.ready:
            event.set()

    def consume(self, index: int) -> None:
        self.seen[index], self.num_awake[index] = [], 0
        try:
            consumer = ring.ConsumerRing(self.words, self.geometry, index, make_fence("aarch64"), self.free.set)
            try:
                while True:
                    taken = consumer.take()
                    if taken is None and consumer.was_announced():
                        self.num_awake[index] += 1
                        if any(consumer.has_news for _ in range(NUM_LOOKS)):
                            taken = consumer.take()
                    if taken is None:
                        self.ready[index].sleep()
                        continue
                    self.seen[index].append(taken[1])
                    consumer.release(taken[1])
            except ChannelClosedError:
                self.ended.add(index)
        except KilledError:
            ring.drop_consumer(self.words.words, self.geometry, index, make_fence())  # what the owner does for a dead consumer
            self.free.is_set = True
            raise


@settings(max_examples=400, deadline=None)
@given(
    num_slots=st.integers(1, 4),
    num_consumers=st.integers(1, 3),
    newest_mask=st.integers(0, 7),
    discarded=st.sets(st.integers(1, NUM_MESSAGES)),
    num_ahead=st.integers(1, 3),
    num_abandoned=st.integers(0, 2),
    choices=st.lists(st.tuples(st.integers(0, 3), st.integers(1, 30)), min_size=1, max_size=40),
    deaths=st.dictionaries(st.sampled_from(["producer", "consumer 0", "consumer 1"]), st.integers(1, 120), max_size=2),
)
def test_whoever_lives_is_woken_for_all_that_is_theirs_and_stays_awake_once_a_claim(
    num_slots: int,
    num_consumers: int,
    newest_mask: int,
    discarded: set[int],
    num_ahead: int,
    num_abandoned: int,
    choices: list[tuple[int, int]],
    deaths: dict[str, int],
) -> None:
    newest_mask &= (1 << num_consumers) - 1
    num_slots = max(num_slots, MIN_SLOTS_FOR_NEWEST if newest_mask else 1) + num_abandoned
    turns = Turns(choices, deaths)
    world = World(turns, Geometry(5, num_slots, 64, num_consumers, newest_mask), discarded, num_ahead, num_abandoned)
    sides = {f"consumer {index}": functools.partial(world.consume, index) for index in range(num_consumers)}

    errors = turns.run({"producer": world.produce} | sides)

    words = world.words.words
    if all(words[world.geometry.gone_word(index)] for index in range(num_consumers)):  # then the producer is told
        errors = [error for error in errors if not isinstance(error, ChannelClosedError)]
    assert errors == []
    given_out = [sequence for sequence in range(1, words[WORD_PUBLISHED] + 1) if sequence not in discarded]
    for index, seen in world.seen.items():
        assert world.num_awake[index] <= words[WORD_ANNOUNCED]
        if index not in world.ended:
            assert f"consumer {index}" in deaths
        elif world.geometry.is_newest(index):
            assert seen == sorted(set(seen)) and set(seen) <= set(given_out)
            # Nothing newer than the last that was given out was for it, or that was cancelled.
            assert seen[-1:] == given_out[-1:] or words[WORD_PUBLISHED] in discarded
            assert progress.num_dropped(words, world.geometry, index, make_fence()) == words[WORD_PUBLISHED] - len(seen)
        else:
            assert seen == given_out


def test_a_side_that_stands_between_any_two_accesses_is_woken_by_what_it_missed() -> None:
    """With one slot, each side sleeps for the other at every message."""
    for before, within in itertools.product(range(1, 90, 5), range(1, 50)):
        turns = Turns([(0, before), (1, within), (0, 60), (1, 60)], {})
        world = World(turns, Geometry(5, 1, 64, 1), {2}, num_ahead=1, num_abandoned=0)
        assert turns.run({"producer": world.produce, "consumer": functools.partial(world.consume, 0)}) == []
        assert world.seen[0] == [1, 3, 4, 5] and world.num_awake[0] <= NUM_MESSAGES
