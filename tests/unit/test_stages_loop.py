"""A stage and its leader: order, credits, ends, and what breaks the group."""

from __future__ import annotations

import threading

import pytest
import torch
from tests.unit.stage_parts import ListSink, ScriptedDecoder, StageRig

from ithaka.workers import contract
from ithaka.workers.families.stages import Chunk
from ithaka.workers.frame_publisher import BadResultError
from ithaka.workers.group import GroupBrokenError
from ithaka.workers.stages.contract import LatentsHeader
from ithaka.workers.wire import WireError


def test_sessions_side_by_side_keep_their_order_numbers_and_decoder_memory() -> None:
    with StageRig() as rig:
        rig.open("a")
        rig.open("b")
        published = [("a", 0, 10), ("b", 0, 20), ("b", 1, 21), ("a", 1, 11), ("b", 2, 22)]
        for index, (session_id, chunk, value) in enumerate(published):
            rig.publish(session_id, chunk, value)
            rig.sink.events.count(index + 1)
        seen = rig.sink.events.all()
        assert [(header.session_id, header.chunk) for header, _ in seen] == [entry[:2] for entry in published]
        # The value, and how many chunks the session had had.
        assert [value for _, value in seen] == [11, 21, 23, 13, 25]
        header = seen[3][0]
        assert (header.first_seq, header.num_frames, header.control_id) == (3, 2, 10)


def test_a_slot_is_a_credit_and_decoding_goes_on_beside_the_leader() -> None:
    decoder = ScriptedDecoder(gate=threading.Semaphore(0))
    with StageRig(decoder) as rig:
        rig.open("a")
        assert rig.outlet.room_frames() == 6
        rig.publish("a", 0)
        decoder.events.wait(lambda seen: ("decode", "a", 0) in seen)
        rig.publish("a", 1)
        rig.publish("a", 2)
        assert rig.outlet.room_frames() == 0
        assert rig.sink.events.all() == []
        decoder.gate.release()
        rig.sink.events.count(1)
        decoder.events.wait(lambda seen: sum(event[0] == "decode" for event in seen) == 2)
        assert rig.outlet.room_frames() == 2
        decoder.gate.release(2)
        rig.sink.events.count(3)


def test_without_room_for_its_frames_no_chunk_is_taken() -> None:
    with StageRig(sink=ListSink(room=3)) as rig:
        rig.open("a")
        for chunk in range(3):
            rig.publish("a", chunk)
        rig.sink.events.count(1)
        rig.sink.make_room(1)
        rig.sink.events.count(2)
        assert rig.outlet.room_frames() < 6
        rig.sink.make_room(4)
        assert [header.chunk for header, _ in rig.sink.events.count(3)] == [0, 1, 2]


def test_an_ended_session_s_memory_goes_after_its_last_frame() -> None:
    decoder = ScriptedDecoder(gate=threading.Semaphore(0))
    with StageRig(decoder) as rig:
        rig.open("a")
        rig.publish("a", 0)
        rig.publish("a", 1)
        rig.close_session("a", 2)
        rig.open("b")
        decoder.events.wait(lambda seen: ("decode", "a", 0) in seen)
        decoder.gate.release(2)
        decoder.events.wait(lambda seen: ("close", "a") in seen)
        assert [header.chunk for header, _ in rig.sink.events.count(2)] == [0, 1]
        rig.close_session("b", 0)
        decoder.events.wait(lambda seen: ("close", "b") in seen)


def test_a_discarded_session_s_latents_are_never_decoded_and_its_name_is_free_at_once() -> None:
    decoder = ScriptedDecoder(gate=threading.Semaphore(0))
    with StageRig(decoder) as rig:
        rig.open("a")
        for chunk in range(3):
            rig.publish("a", chunk, value=chunk)
        decoder.events.wait(lambda seen: ("decode", "a", 0) in seen)
        rig.close_session("a", 3, discard=True)
        rig.open("a", seed=1)
        decoder.gate.release(1000)
        decoder.events.wait(lambda seen: seen.count(("open", "a")) == 2)
        rig.publish("a", 0, value=100)
        decoder.events.wait(lambda seen: ("decode", "a", 100) in seen)
        seen = decoder.events.all()
        assert ("decode", "a", 1) not in seen and ("decode", "a", 2) not in seen
        assert ("close", "a") in seen
        assert rig.sink.events.count(2)[1] == (LatentsHeader("a", 0, 1, 2, 0), 101)


def test_a_stop_decodes_what_is_in_the_channel() -> None:
    decoder = ScriptedDecoder(gate=threading.Semaphore(0))
    with StageRig(decoder) as rig:
        rig.open("a")
        for chunk in range(3):
            rig.publish("a", chunk)
        rig.close_session("a", 3)
        rig.outlet.close()
        decoder.gate.release(3)
        rig.join()
        assert rig.error is None and rig.sink.is_closed
        assert [header.chunk for header, _ in rig.sink.events.all()] == [0, 1, 2]


def test_a_lost_leader_breaks_the_group_and_so_does_a_lost_server() -> None:
    with StageRig() as rig:
        rig._taker.close()
        rig.join()
        assert isinstance(rig.error, GroupBrokenError) and rig.error.rank == 0
    with StageRig() as rig:
        rig.server.close()
        rig.join()
        assert isinstance(rig.error, ConnectionError)


def test_a_lost_stage_is_named_to_the_leader() -> None:
    with StageRig() as rig:
        rig.server.close()
        rig.join()
        rig.leader.close()
        with pytest.raises(GroupBrokenError) as broken:
            rig.open("a")
        assert broken.value.rank == 1


def test_messages_of_others_are_refused() -> None:
    with StageRig() as rig:
        rig.server.send(contract.Shutdown())
        rig.join()
        assert isinstance(rig.error, WireError) and "takes no Shutdown" in str(rig.error)
    with StageRig() as rig:
        rig._taker.send(contract.StopRank())
        rig.join()
        assert isinstance(rig.error, WireError) and "StopRank" in str(rig.error)


def test_frames_other_than_the_step_said_are_refused() -> None:
    with StageRig(ScriptedDecoder(num_frames=1)) as rig:
        rig.open("a")
        rig.publish("a", 0)
        rig.join()
        assert isinstance(rig.error, BadResultError) and "decodes to 1 frames, its step said 2" in str(rig.error)


def test_latents_larger_than_the_denoiser_said_are_refused() -> None:
    with StageRig() as rig:
        rig.open("a")
        with pytest.raises(BadResultError, match=r"chunk 7: .*ends at 80000"):
            rig.outlet.publish(Chunk((torch.zeros(10_000, dtype=torch.int64),), 2), LatentsHeader("a", 7, 1, 2, 0))


def test_a_step_that_was_not_clean_publishes_nothing() -> None:
    with StageRig() as rig:
        rig.open("a")
        rig.checks.append(GroupBrokenError(2))
        with pytest.raises(GroupBrokenError, match="rank 2"):
            rig.publish("a", 0)
        assert rig.decoder.events.wait(lambda seen: ("open", "a") in seen) == [("open", "a")]
        assert rig.sink.events.all() == []


def test_a_leader_that_hands_on_latents_takes_no_frame_channel() -> None:
    with StageRig() as rig, pytest.raises(WireError, match="takes no AttachFrames"):
        rig.outlet.attach([])
