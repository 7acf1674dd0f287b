"""Producer and consumers take turns at every single memory access, and die at any of them."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.channel_turns import KilledError, SteppedWords, Turns

from ithaka.comm_ext.channel import progress, ring
from ithaka.comm_ext.channel.base import ChannelClosedError
from ithaka.comm_ext.channel.fence import make_fence
from ithaka.comm_ext.channel.layout import MIN_SLOTS_FOR_NEWEST, WORD_CLOSED, WORD_PUBLISHED, Geometry

NUM_MESSAGES = 4


@dataclass
class World:
    turns: Turns
    geometry: Geometry
    words: SteppedWords = field(init=False)
    payload: list[list[int]] = field(init=False)
    seen: dict[int, list[int]] = field(default_factory=dict)
    ended: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.words = SteppedWords(self.geometry.num_words, self.turns)
        self.payload = [[0, 0] for _ in range(self.geometry.num_slots)]

    def produce(self) -> None:
        fence = make_fence()
        try:
            producer = ring.ProducerRing(self.words, self.geometry, fence)
            for sequence in range(1, NUM_MESSAGES + 1):
                while (slot := producer.claim()) is None:
                    pass
                for half in (0, 1):
                    self.turns.step()
                    self.payload[slot][half] = sequence
                assert producer.publish(slot) == sequence
            ring.close_producer(self.words, fence)
        except KilledError:
            self.words.words[WORD_CLOSED] = 1  # what the owner does for a dead producer
            raise

    def consume(self, index: int, num_held: int) -> None:
        fence = make_fence("aarch64")  # the fence of other machines, run for real
        held: list[tuple[int, int]] = []
        seen = self.seen.setdefault(index, [])
        try:
            consumer = ring.ConsumerRing(self.words, self.geometry, index, fence)
            try:
                while True:
                    taken = consumer.take()
                    if taken is not None:
                        seen.append(taken[1])
                        held.append(taken)
                    if held and (taken is None or len(held) > num_held):
                        self.give_back(consumer, *held.pop(0))
            except ChannelClosedError:
                self.ended.add(index)
            while held:
                self.give_back(consumer, *held.pop())
        except KilledError:
            ring.drop_consumer(self.words.words, self.geometry, index, fence)  # what the owner does for a dead consumer
            raise

    def give_back(self, consumer: ring.ConsumerRing, slot: int, sequence: int) -> None:
        for half in (0, 1):
            self.turns.step()
            assert self.payload[slot][half] == sequence
        consumer.release(sequence)


@settings(max_examples=400, deadline=None)
@given(
    num_slots=st.integers(1, 4),
    held=st.lists(st.integers(0, 2), min_size=1, max_size=3),
    newest_mask=st.integers(0, 7),
    choices=st.lists(st.tuples(st.integers(0, 3), st.integers(1, 12)), min_size=1, max_size=40),
    deaths=st.dictionaries(st.sampled_from(["producer", "consumer 0", "consumer 2"]), st.integers(1, 100), max_size=2),
)
def test_survivors_see_what_their_policy_says_once_in_order(
    num_slots: int, held: list[int], newest_mask: int, choices: list[tuple[int, int]], deaths: dict[str, int]
) -> None:
    turns = Turns(choices, deaths)
    newest_mask &= (1 << len(held)) - 1
    num_slots = max(num_slots, MIN_SLOTS_FOR_NEWEST if newest_mask else 1)
    world = World(turns, Geometry(5, num_slots, 64, len(held), newest_mask))

    def consume(index: int) -> Callable[[], None]:
        return lambda: world.consume(index, held[index])

    errors = turns.run({"producer": world.produce} | {f"consumer {index}": consume(index) for index in range(len(held))})

    all_gone = all(world.words.words[world.geometry.gone_word(index)] for index in range(len(held)))
    if all_gone:  # then the producer is told
        errors = [error for error in errors if not isinstance(error, ChannelClosedError)]
    assert errors == []
    num_published = world.words.words[WORD_PUBLISHED]
    assert num_published == NUM_MESSAGES or "producer" in deaths or all_gone
    for index, seen in world.seen.items():
        dropped = progress.num_dropped(world.words.words, world.geometry, index, make_fence())
        if world.geometry.is_newest(index):
            assert seen == sorted(set(seen))
            if index in world.ended:
                assert seen[-1:] == ([num_published] if num_published else [])
                assert dropped == num_published - len(seen)
            continue
        assert dropped == 0
        if index in world.ended:
            assert seen == list(range(1, num_published + 1))
        else:
            assert seen == list(range(1, len(seen) + 1))
            assert f"consumer {index}" in deaths


def test_the_newest_message_is_never_written_over_while_it_is_being_taken() -> None:
    """A producer that stands anywhere, then does the work of several messages between any two accesses of a take."""
    for before, within, lead in itertools.product(range(16, 60, 2), range(8, 24), (80, 95, 110)):
        turns = Turns([(0, before), (1, within), (0, lead), (1, 12), (0, 200)], {})
        world = World(turns, Geometry(5, MIN_SLOTS_FOR_NEWEST, 64, 1, 1))
        errors = turns.run({"producer": world.produce, "consumer": functools.partial(world.consume, 0, 0)})
        assert errors == []
        assert world.seen[0][-1] == NUM_MESSAGES
        assert progress.num_dropped(world.words.words, world.geometry, 0, make_fence()) == NUM_MESSAGES - len(world.seen[0])
