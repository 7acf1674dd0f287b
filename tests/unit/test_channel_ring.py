"""The ring against a plain model: every order of calls, deaths within a call, successors, drops."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test

from ithaka.comm_ext.channel import fence, layout, progress, ring
from ithaka.comm_ext.channel.base import ChannelClosedError, ChannelError, SlotStateError
from ithaka.comm_ext.channel.layout import WORD_PUBLISHED, Geometry


class KilledError(Exception):
    """The process died before its next store."""


class FakeWords:
    """Memory whose user dies when it has made ``stores_left`` more stores."""

    def __init__(self, num_words: int) -> None:
        self._words = [0] * num_words
        self.stores_left: int | None = None

    def __getitem__(self, index: int, /) -> int:
        return self._words[index]

    def __setitem__(self, index: int, value: int, /) -> None:
        if self.stores_left == 0:
            raise KilledError
        if self.stores_left is not None:
            self.stores_left -= 1
        self._words[index] = value


def no_fence() -> None:
    pass


@dataclass
class ConsumerModel:
    is_newest: bool
    waiting: list[int] = field(default_factory=list)
    held: list[int] = field(default_factory=list)
    left_over: list[int] = field(default_factory=list)
    num_dropped: int = 0
    is_gone: bool = False

    @property
    def counts(self) -> set[int]:
        return set() if self.is_gone else {*self.waiting, *self.held, *self.left_over}

    def publish(self, sequence: int) -> None:
        if self.is_newest:
            self.num_dropped += len(self.waiting)
            self.waiting.clear()
        self.waiting.append(sequence)

    def take(self, discarded: set[int], newest: int) -> int | None:
        while self.left_over:
            sequence = self.left_over.pop(0)
            if sequence not in discarded and (not self.is_newest or sequence == newest):
                return sequence
        while self.waiting:
            sequence = self.waiting.pop(0)
            if sequence not in discarded:
                return sequence
            self.num_dropped += 1
        return None


class RingMachine(RuleBasedStateMachine):
    @initialize(
        num_slots=st.integers(1, 4), are_newest=st.lists(st.booleans(), min_size=1, max_size=3), ends_after=st.integers(0, 12)
    )
    def create(self, num_slots: int, are_newest: list[bool], ends_after: int) -> None:
        self.ends_after = ends_after
        mask = sum(is_newest << index for index, is_newest in enumerate(are_newest))
        self.geometry = Geometry(5, max(num_slots, layout.MIN_SLOTS_FOR_NEWEST if mask else 1), 64, len(are_newest), mask)
        self.words = FakeWords(self.geometry.num_words)
        self.payload: dict[int, int] = {}
        self.slot_of: dict[int, int] = {}
        self.claimed: list[int] = []
        self.is_closed = False
        self.discarded: set[int] = set()
        self.models = [ConsumerModel(is_newest) for is_newest in are_newest]
        self.producer = ring.ProducerRing(self.words, self.geometry, no_fence)
        self.consumers = [self.open_consumer(index) for index in range(len(are_newest))]

    def open_consumer(self, index: int) -> ring.ConsumerRing:
        return ring.ConsumerRing(self.words, self.geometry, index, no_fence)

    @property
    def counted_slots(self) -> set[int]:
        return {self.slot_of[sequence] for model in self.models for sequence in model.counts}

    @property
    def is_refused(self) -> bool:
        return self.is_closed or all(model.is_gone for model in self.models)

    def count_published(self, slot: int) -> None:
        sequence = len(self.slot_of) + 1
        self.slot_of[sequence] = slot
        self.payload[slot] = sequence
        for model in self.models:
            if not model.is_gone:
                model.publish(sequence)

    @rule()
    def claim(self) -> None:
        if self.is_refused:
            with pytest.raises(ChannelClosedError):
                self.producer.claim()
            return
        slot = self.producer.claim()
        free = set(range(self.geometry.num_slots)) - self.counted_slots - set(self.claimed)
        assert (slot in free) if free else slot is None
        if slot is not None:
            self.claimed.append(slot)
            self.payload[slot] = -1  # the producer scribbles

    @precondition(lambda self: self.claimed)
    @rule(data=st.data())
    def publish(self, data: st.DataObject) -> None:
        slot = data.draw(st.sampled_from(self.claimed))
        if self.is_refused:
            with pytest.raises(ChannelClosedError):
                self.producer.publish(slot)
            return
        assert self.producer.publish(slot) == len(self.slot_of) + 1
        self.claimed.remove(slot)
        self.count_published(slot)

    @precondition(lambda self: self.claimed and not self.is_refused)
    @rule(data=st.data())
    def publish_discarded(self, data: st.DataObject) -> None:
        slot = data.draw(st.sampled_from(self.claimed))
        self.discarded.add(self.producer.publish(slot, is_discarded=True))
        self.claimed.remove(slot)
        self.count_published(slot)

    @rule(slot=st.integers(-1, 5))
    def publish_unclaimed(self, slot: int) -> None:
        if slot not in self.claimed:
            with pytest.raises(SlotStateError):
                self.producer.publish(slot)

    @precondition(lambda self: self.claimed and not self.is_refused)
    @rule(data=st.data(), num_stores=st.integers(0, 3))
    def die_in_publish_and_be_succeeded(self, data: st.DataObject, num_stores: int) -> None:
        slot = data.draw(st.sampled_from(self.claimed))
        before = self.words[WORD_PUBLISHED]
        self.words.stores_left = num_stores
        try:
            self.producer.publish(slot)
        except KilledError:
            assert self.words[WORD_PUBLISHED] == before
        else:
            self.count_published(slot)
        self.words.stores_left = None
        self.claimed.clear()
        self.producer = ring.ProducerRing(self.words, self.geometry, no_fence)

    @rule(data=st.data())
    def take(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.models) - 1))
        model = self.models[index]
        sequence = None if model.is_gone else model.take(self.discarded, len(self.slot_of))
        if model.is_gone or (self.is_closed and sequence is None):
            with pytest.raises(ChannelClosedError):
                self.consumers[index].take()
            return
        taken = self.consumers[index].take()
        if sequence is None:
            assert taken is None
            return
        assert taken == (self.slot_of[sequence], sequence)
        assert self.payload[taken[0]] == sequence
        model.held.append(sequence)

    @rule(data=st.data(), num_stores=st.integers(0, 4))
    def die_in_take_and_be_succeeded(self, data: st.DataObject, num_stores: int) -> None:
        index = data.draw(st.integers(0, len(self.models) - 1))
        model = self.models[index]
        if model.is_gone or model.left_over or not model.waiting or model.waiting[0] in self.discarded:
            return
        self.words.stores_left = num_stores
        try:
            self.consumers[index].take()
        except KilledError:
            assert num_stores < (4 if model.is_newest else 3)
        else:
            model.held.append(model.waiting.pop(0))
        self.words.stores_left = None
        self.succeed(index)

    @rule(remainder=st.integers(0, 1))
    def discard(self, remainder: int) -> None:
        self.producer.discard(lambda slot: self.payload[slot] % 2 == remainder)
        published = (sequence for sequence, slot in self.slot_of.items() if self.payload[slot] == sequence)
        self.discarded |= {sequence for sequence in published if sequence % 2 == remainder}

    @rule(data=st.data(), dies=st.booleans())
    def release(self, data: st.DataObject, dies: bool) -> None:
        index = data.draw(st.integers(0, len(self.models) - 1))
        model = self.models[index]
        if model.is_gone or not model.held:
            return
        sequence = data.draw(st.sampled_from(model.held))
        assert self.payload[self.slot_of[sequence]] == sequence
        if dies:
            self.words.stores_left = 0
            with pytest.raises(KilledError):
                self.consumers[index].release(sequence)
            self.words.stores_left = None
            self.succeed(index)
            return
        self.consumers[index].release(sequence)
        model.held.remove(sequence)
        with pytest.raises(SlotStateError):
            self.consumers[index].release(sequence)

    @rule(data=st.data())
    def die_holding_and_be_succeeded(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.models) - 1))
        if self.models[index].is_gone:
            with pytest.raises(ChannelClosedError):
                self.open_consumer(index)
        else:
            self.succeed(index)

    def succeed(self, index: int) -> None:
        model = self.models[index]
        model.left_over = sorted([*model.left_over, *model.held])
        model.held = []
        self.consumers[index] = self.open_consumer(index)

    @precondition(lambda self: len(self.slot_of) >= self.ends_after)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.models) - 1))
        ring.drop_consumer(self.words, self.geometry, index, no_fence)
        self.models[index].is_gone = True

    @precondition(lambda self: len(self.slot_of) >= self.ends_after)
    @rule()
    def close(self) -> None:
        ring.close_producer(self.words, no_fence)
        self.is_closed = True

    @invariant()
    def free_slots_are_the_uncounted_ones(self) -> None:
        free = set(range(self.geometry.num_slots)) - self.counted_slots - set(self.claimed)
        assert self.producer.num_free == len(free)

    @invariant()
    def drops_are_counted_exactly(self) -> None:
        for index, model in enumerate(self.models):
            assert progress.num_dropped(self.words, self.geometry, index, no_fence) == model.num_dropped

    @invariant()
    def a_newest_consumer_that_holds_nothing_leaves_room(self) -> None:
        if all(model.is_newest and not model.held and not model.left_over for model in self.models):
            assert self.producer.num_free + len(self.claimed) >= self.geometry.num_slots - 1

    @invariant()
    def what_is_counted_is_intact(self) -> None:
        for model in self.models:
            assert all(self.payload[self.slot_of[sequence]] == sequence for sequence in model.counts)


def test_every_order_of_calls_agrees_with_the_model() -> None:
    run_state_machine_as_test(RingMachine, settings=settings(max_examples=200, stateful_step_count=60, deadline=None))


@pytest.mark.parametrize("index", [-1, 2, 99])
def test_an_unknown_consumer_is_refused(index: int) -> None:
    geometry = Geometry(5, 2, 64, 2)
    words = FakeWords(geometry.num_words)
    with pytest.raises(ChannelError, match="channel 5"):
        ring.ConsumerRing(words, geometry, index, no_fence)
    with pytest.raises(ChannelError, match="channel 5"):
        ring.drop_consumer(words, geometry, index, no_fence)


@pytest.mark.parametrize("damage", ["slot beyond the arena", "slot of another message"])
def test_a_queue_that_no_producer_wrote_is_an_error(damage: str) -> None:
    geometry = Geometry(5, 2, 64, 1)
    words = FakeWords(geometry.num_words)
    producer = ring.ProducerRing(words, geometry, no_fence)
    consumer = ring.ConsumerRing(words, geometry, 0, no_fence)
    slot = producer.claim()
    assert slot is not None
    producer.publish(slot)
    words[geometry.queue_word(1)] = 2**63 if damage.endswith("arena") else 1 - slot
    with pytest.raises(ChannelError, match="message 1"):
        consumer.take()


def test_words_of_one_channel_do_not_overlap() -> None:
    geometry = Geometry(5, 3, 64, 2)
    words = [
        *(geometry.gone_word(index) for index in range(2)),
        *(geometry.progress_word(index) + part for index in range(2) for part in range(5)),
        *(geometry.mapped_word(index) for index in range(2)),
        *(geometry.queue_word(sequence) for sequence in range(1, 4)),
        *(geometry.holds_word(slot) for slot in range(3)),
        *(geometry.discarded_word(slot) for slot in range(3)),
        *(geometry.released_word(index, slot) for index in range(2) for slot in range(3)),
        *(geometry.taken_word(index, slot) for index in range(2) for slot in range(3)),
    ]
    assert sorted(words) == list(range(11, geometry.num_words))
    assert geometry.queue_word(4) == geometry.queue_word(1)


def test_only_a_full_fence_takes_its_lock_on_every_machine() -> None:
    assert fence.make_fence("x86_64") is fence.make_fence("AMD64")
    for machine in ("x86_64", "AMD64", "aarch64"):
        assert fence.make_fence(machine, is_full=True) is not fence.make_fence("x86_64")
