"""What may happen to the processes at both ends of a channel, in any memory: killed and stopped wherever it hurts."""

from __future__ import annotations

import os
import select
import signal

import pytest
from tests.process.channel_memory import read
from tests.process.channel_peer import deliveries, take_all
from tests.process.channel_stage import WAIT_S, Stage

from ithaka.comm_ext.channel.base import ChannelClosedError
from ithaka.comm_ext.channel.host_shm import clear_event


def three_consumers_at_different_speeds(stage: Stage) -> None:
    stage.create(num_consumers=3)
    producer = stage.producer()
    peers = [stage.start(str(index)) for index in range(3)]
    peers[0].tell("stream")
    for number in range(1, 31):
        stage.publish(producer, number)
        assert peers[0].hear() == f"{number} {number}"
        assert peers[1].ask("take") == f"{number} {number}"
        assert peers[1].ask("release") == "released"
        if number % 3 == 0:
            for late in range(number - 2, number + 1):
                assert peers[2].ask("take") == f"{late} {late}"
                assert peers[2].ask("release") == "released"
    producer.close()
    assert peers[0].hear() == "end"
    assert [peer.ask("take") for peer in peers[1:]] == ["end", "end"]
    for peer in peers:
        assert peer.ask("close") == "closed"
        peer.leave()


def a_newest_consumer_that_is_stopped_never_holds_the_producer(stage: Stage) -> None:
    channel = stage.create(num_consumers=2, num_slots=4, policies=("fifo", "newest"))
    producer = stage.producer()
    every, newest = stage.start("0"), stage.start("1")
    stage.publish(producer, 1)
    assert newest.ask("take") == "1 1"
    newest.signal(signal.SIGSTOP)
    for number in range(2, 21):
        stage.publish(producer, number)
        for _ in range(1 + (number == 2)):
            assert every.ask("take").split()[0].isdigit() and every.ask("release") == "released"
    newest.tell("release")
    newest.tell("take")
    newest.signal(signal.SIGCONT)
    assert [newest.hear(), newest.hear()] == ["released", "20 20"]
    assert newest.ask("dropped") == "dropped 18"
    assert producer.num_dropped(1) == channel.num_dropped(1) == 18


def a_producer_killed_when_it_has_claimed(stage: Stage) -> None:
    _kill_producer_after(stage, ["claim"])


def a_producer_killed_when_it_has_written(stage: Stage) -> None:
    _kill_producer_after(stage, ["claim", "write 3"])


def _kill_producer_after(stage: Stage, steps: list[str]) -> None:
    channel = stage.create()
    consumer = stage.consumer()
    producer = stage.start("producer")
    assert producer.ask("stream 1 2") == "streamed"
    # One is taken while the producer lives: its memory is mapped, or it could not be reached any more.
    seen = [stage.take_number(consumer)]
    for step in steps:
        producer.ask(step)
    producer.kill()
    channel.close_producer()
    assert seen + [number for _, number in take_all(stage.memory, consumer)] == [1, 2]


def a_producer_stopped_between_claim_and_publish(stage: Stage) -> None:
    stage.create()
    consumer = stage.consumer()
    producer = stage.start("producer")
    assert producer.ask("stream 1 1") == "streamed"
    producer.ask("claim")
    producer.ask("write 2")
    producer.signal(signal.SIGSTOP)
    producer.tell("publish")
    assert stage.take_number(consumer) == 1
    assert consumer.take() is None
    clear_event(consumer.ready_fd())
    producer.signal(signal.SIGCONT)
    assert producer.hear() == "published 2"
    assert stage.take_number(consumer) == 2


def a_consumer_killed_while_it_waits(stage: Stage) -> None:
    channel = stage.create(num_consumers=2, num_slots=2)
    producer = stage.producer()
    living = stage.consumer(1)
    dead = stage.start("0")
    stage.publish(producer, 1)
    assert dead.ask("take") == "1 1"
    assert dead.ask("release") == "released"
    dead.tell("take")
    dead.kill()
    channel.drop_consumer(0)
    for number in range(2, 12):
        assert stage.take_number(living) == number - 1
        stage.publish(producer, number)


def a_consumer_killed_while_holding_is_dropped(stage: Stage) -> None:
    channel = stage.create(num_consumers=2, num_slots=2)
    producer = stage.producer()
    living = stage.consumer(1)
    dead = stage.start("0")
    for number in (1, 2):
        stage.publish(producer, number)
    assert dead.ask("take") == "1 1"
    for number in (1, 2):
        assert stage.take_number(living) == number
    dead.kill()
    if stage.device_of(0) == 0:  # what another device took is its own
        assert producer.claim() is None
    clear_event(producer.free_fd())
    channel.drop_consumer(0)
    assert select.select([producer.free_fd()], [], [], 0)[0]
    assert producer.num_free == 2


def a_consumer_stopped_while_holding_holds_the_producer_only(stage: Stage) -> None:
    stage.create(num_consumers=2, num_slots=2)
    producer = stage.producer()
    living = stage.consumer(1)
    stopped = stage.start("0")
    for number in (1, 2):
        stage.publish(producer, number)
    assert stopped.ask("take") == "1 1"
    stopped.signal(signal.SIGSTOP)
    for number in (1, 2):
        assert stage.take_number(living) == number
    if stage.device_of(0) == 0:  # what another device took is its own
        assert producer.claim() is None
    stopped.tell("release")
    stopped.tell("take")
    stopped.tell("release")
    stopped.signal(signal.SIGCONT)
    assert [stopped.hear() for _ in range(3)] == ["released", "2 2", "released"]
    while producer.num_free < 2:
        assert select.select([producer.free_fd()], [], [], WAIT_S)[0]
        clear_event(producer.free_fd())


def a_consumer_killed_in_full_flight_is_succeeded_without_a_gap(stage: Stage) -> None:
    stage.create()
    producer = stage.start("producer")
    producer.tell("stream 1 600")
    seen: list[int] = []
    num_lost = 0 if stage.device_of(0) == 0 else 3

    def see(number: int) -> None:
        # What was taken and not released comes again; nothing is left out but what went with a dead one's own device memory.
        assert len(seen) - 4 < number <= len(seen) + 1 + num_lost
        seen[number - 1 :] = []
        seen.extend(range(len(seen) + 1, number + 1))

    for _ in range(3):
        consumer = stage.start("0")
        consumer.tell("stream")
        lines = [consumer.hear() for _ in range(30)]
        lines += consumer.kill()
        for line in lines:
            see(int(line.split()[1]))
    last = stage.consumer()
    for delivery in deliveries(last):
        see(read(stage.memory, delivery))
        last.release(delivery)
        if seen[-1] == 600:
            break
    assert producer.hear() == "streamed"
    assert seen == list(range(1, 601))


def a_producer_ahead_of_its_consumer_waits_for_slots(stage: Stage, producer_memory: str | None = None) -> None:
    stage.create()
    producer, consumer = stage.start("producer", producer_memory), stage.start("0")
    producer.tell("stream 1 20")
    for number in range(1, 21):
        assert consumer.ask("take") == f"{number} {number}"
        assert consumer.ask("release") == "released"
    assert producer.hear() == "streamed"


def a_producer_that_ends_without_a_word_ends_take(stage: Stage) -> None:
    channel = stage.create()
    consumer = stage.start("0")
    producer = stage.start("producer")
    assert producer.ask("stream 1 1") == "streamed"
    assert consumer.ask("take") == "1 1"
    consumer.tell("take")
    producer.kill()
    channel.close_producer()
    assert consumer.hear() == "end"
    assert consumer.ask("close") == "closed"
    consumer.leave()


def sides_close_in_every_order_between_processes(stage: Stage) -> None:
    for first, second in (("producer", "consumer"), ("consumer", "producer")):
        channel = stage.create()
        peers = {"producer": stage.start("producer"), "consumer": stage.start("0")}
        assert peers["producer"].ask("stream 1 2") == "streamed"
        assert peers["consumer"].ask("take") == "1 1"
        channel.close()
        for name in (first, second):
            assert peers[name].ask("close") == "closed"
        for peer in peers.values():
            peer.leave()


def two_consumers_in_one_process_share_what_is_mapped(stage: Stage) -> None:
    channel = stage.create(num_consumers=2)
    producer = stage.start("producer")
    first, second = stage.consumer(0), stage.consumer(1)
    assert producer.ask("stream 1 2") == "streamed"
    assert [stage.take_number(first), stage.take_number(second)] == [1, 1]
    first.close()
    assert stage.take_number(second) == 2
    assert producer.ask("stream 3 3") == "streamed"
    producer.kill()
    channel.close_producer()
    assert take_all(stage.memory, second) == [(3, 3)]


def a_producer_killed_in_full_flight_is_succeeded(stage: Stage) -> None:
    """Only host memory outlives its writer."""
    channel = stage.create()
    consumer = stage.consumer()
    seen: list[int] = []
    stream = deliveries(consumer)
    for _ in range(4):
        producer = stage.start("producer")
        next_number = len(seen) + 1
        producer.tell(f"stream {next_number} 100000")
        for delivery in stream:
            seen.append(read(stage.memory, delivery))
            consumer.release(delivery)
            if len(seen) == next_number + 60:
                break
        producer.kill()
        while (left_over := consumer.take()) is not None:
            seen.append(read(stage.memory, left_over))
            consumer.release(left_over)
    assert seen == list(range(1, len(seen) + 1))
    channel.close_producer()
    with pytest.raises(ChannelClosedError):
        consumer.take()


def memory_mapped_by_the_killed_is_freed(stage: Stage) -> None:
    """Of device memory: a producer's close outlasts consumers that were killed with it mapped and that nobody speaks for."""
    stage.create(num_slots=2)
    producer = stage.producer()
    dead = stage.start("0")
    stage.publish(producer, 1)
    assert dead.ask("take") == "1 1"
    assert dead.ask("release") == "released"
    descriptors = len(os.listdir("/proc/self/fd"))
    producer.close()
    dead.kill()
    # The arena's own descriptors go last, when the memory is free.
    while len(os.listdir("/proc/self/fd")) > descriptors - 9:
        os.sched_yield()


ON_ANY_MEMORY = (
    three_consumers_at_different_speeds,
    a_newest_consumer_that_is_stopped_never_holds_the_producer,
    a_producer_killed_when_it_has_claimed,
    a_producer_killed_when_it_has_written,
    a_producer_stopped_between_claim_and_publish,
    a_consumer_killed_while_it_waits,
    a_consumer_killed_while_holding_is_dropped,
    a_consumer_stopped_while_holding_holds_the_producer_only,
    a_consumer_killed_in_full_flight_is_succeeded_without_a_gap,
    a_producer_ahead_of_its_consumer_waits_for_slots,
    a_producer_that_ends_without_a_word_ends_take,
    sides_close_in_every_order_between_processes,
    two_consumers_in_one_process_share_what_is_mapped,
)
