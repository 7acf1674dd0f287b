"""Claims that wake, messages whose data is late, cancelled sessions and ends, in every order of calls."""

from __future__ import annotations

import contextlib

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test
from tests.unit.channel_sides import is_readable
from tests.unit.device_sides import NOTHING, create, message, read, store, wait_until

from ithaka.comm_ext.channel.base import ChannelClosedError, Policy
from ithaka.comm_ext.channel.cuda_ipc import clear_event
from ithaka.comm_ext.channel.device import DeviceDelivery, DeviceSlot

NUM_SLOTS = 4


class DeviceMachine(RuleBasedStateMachine):
    @initialize(
        consumers=st.lists(st.tuples(st.sampled_from([0, 1]), st.sampled_from(["fifo", "newest"])), min_size=1, max_size=3),
        ends_after=st.integers(0, 12),
    )
    def open(self, consumers: list[tuple[int, Policy]], ends_after: int) -> None:
        self.ends_after = ends_after
        self.devices = [device for device, _ in consumers]
        self.policies = [policy for _, policy in consumers]
        self.stack = contextlib.ExitStack()
        self.world, self.producer, self.consumers = create(self.stack, self.devices, NUM_SLOTS, self.policies)
        self.stream = self.world.runtime.open_stream(0)
        self.claimed: list[DeviceSlot] = []
        self.sessions: list[int] = []
        self.cancelled: set[int] = set()
        self.num_visible = 0
        self.is_late = self.is_closed = False
        self.seen: list[list[int]] = [[] for _ in consumers]
        self.held: list[list[DeviceDelivery]] = [[] for _ in consumers]
        self.num_looked_at = [0 for _ in consumers]
        self.has_ended = [False for _ in consumers]

    @precondition(lambda self: not self.is_closed)
    @rule()
    def claim(self) -> None:
        num_free = self.producer.num_free
        slot = self.producer.claim()
        assert (slot is not None) == (num_free > 0)
        if slot is not None:
            self.claimed.append(slot)
            assert all(is_readable(consumer.ready_fd()) for consumer in self.consumers), "woken early"

    @precondition(lambda self: self.claimed and not self.is_closed)
    @rule(data=st.data(), session=st.integers(0, 2), is_complete=st.booleans())
    def publish(self, data: st.DataObject, session: int, is_complete: bool) -> None:
        slot = self.claimed.pop(data.draw(st.integers(0, len(self.claimed) - 1)))
        number = len(self.sessions) + 1
        store(slot.data, bytes([number]) * 10)
        store(slot.data.part(256, 120), bytes([number]) * 120)
        stream = 0 if is_complete else self.stream
        assert self.producer.publish(slot, message(number, session), stream) == number
        self.sessions.append(session)
        self.see()

    @precondition(lambda self: not self.is_closed)
    @rule()
    def keep_the_data_from_completing(self) -> None:
        self.world.runtime.hold(self.stream)
        self.is_late = True

    @precondition(lambda self: self.is_late)
    @rule()
    def complete_the_data(self) -> None:
        self.world.runtime.let_run(self.stream)
        self.is_late = False
        self.see()

    def see(self) -> None:
        """What is complete, and came behind nothing that is not, can be taken."""
        if not self.is_late:
            wait_until(lambda: self.producer.num_waiting == 0)
        self.num_visible = len(self.sessions) - self.producer.num_waiting

    @precondition(lambda self: not self.is_closed)
    @rule(session=st.integers(0, 2))
    def discard(self, session: int) -> None:
        self.producer.discard(session)
        self.cancelled |= {number for number, of_session in enumerate(self.sessions, 1) if of_session == session}

    @rule(data=st.data(), num_held=st.integers(0, 1))
    def look(self, data: st.DataObject, num_held: int) -> None:
        """As a consumer does that was woken: everything is taken, then it would sleep."""
        index = data.draw(st.integers(0, len(self.consumers) - 1))
        consumer = self.consumers[index]
        clear_event(consumer.ready_fd())
        with contextlib.suppress(ChannelClosedError):
            while (delivery := consumer.take()) is not None:
                assert read(delivery) == delivery.sequence
                self.take(index, delivery)
                while len(self.held[index]) > num_held:
                    consumer.release(self.held[index].pop(0))
            self.num_looked_at[index] = self.num_visible
            return
        assert self.is_closed and not self.is_late
        self.has_ended[index], self.num_looked_at[index] = True, self.num_visible

    def take(self, index: int, delivery: DeviceDelivery) -> None:
        number = delivery.sequence
        assert all(number > before for before in self.seen[index]), "again, or out of order"
        # What another device had pulled when it was cancelled was taken before.
        assert number <= self.num_visible and (number not in self.cancelled or self.devices[index] == 1)
        self.seen[index].append(number)
        self.held[index].append(delivery)

    @precondition(lambda self: not self.is_closed and len(self.sessions) >= self.ends_after)
    @rule(is_killed=st.booleans())
    def end(self, is_killed: bool) -> None:
        """Whatever is claimed and not published."""
        if is_killed:
            self.num_visible = len(self.sessions) - self.producer.num_waiting
            self.world.channel.close_producer()
            # Of what is late nothing comes any more.
            del self.sessions[self.num_visible :]
            self.is_late = False
        else:
            self.is_late = self.producer.num_waiting > 0
            self.producer.close()
        self.is_closed = True
        self.claimed.clear()

    @invariant()
    def nobody_sleeps_while_there_is_something(self) -> None:
        for index, consumer in enumerate(self.consumers):
            if self.has_ended[index]:
                continue
            is_over = self.is_closed and not self.is_late
            if self.num_visible > self.num_looked_at[index] or is_over:
                assert is_readable(consumer.ready_fd())

    @invariant()
    def everybody_got_what_is_theirs(self) -> None:
        for index, seen in enumerate(self.seen):
            theirs = [number for number in range(1, self.num_looked_at[index] + 1) if number not in self.cancelled]
            if self.policies[index] == "newest":
                theirs = theirs[-1:] if theirs and theirs[-1] == self.num_looked_at[index] else []
            assert set(theirs) <= set(seen)

    def teardown(self) -> None:
        if hasattr(self, "stack"):
            self.world.runtime.let_run(self.stream)
            self.stack.close()
            # What stands on the memory keeps it, and its descriptors.
            self.claimed.clear()
            del self.held, self.producer, self.consumers
            wait_until(lambda: self.world.runtime.live[:2] == NOTHING[:2])


def test_every_order_of_calls_wakes_whoever_has_something_to_take() -> None:
    run_state_machine_as_test(DeviceMachine, settings=settings(max_examples=200, stateful_step_count=40, deadline=None))
