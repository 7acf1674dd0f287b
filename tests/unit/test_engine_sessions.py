"""The book of sessions inside the engine: each ends exactly once, after its last packet, whoever fails."""

from __future__ import annotations

import typing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ithaka.server.child_process import ChildFailure
from ithaka.server.engine_client import (
    EngineError,
    EngineEvent,
    EngineSessionEnded,
    EngineSessionStarted,
    PacketArrived,
    SessionRequest,
    StepTimed,
)
from ithaka.server.engine_sessions import EngineSessions
from ithaka.workers import contract

DESCRIPTION = contract.ModelDescription("m", "synthetic", 128, 64, 16, 2, (), True, True, "none")
FAILURE = ChildFailure("m/0", "exited", "was killed by SIGKILL")


class FakeLeader:
    def __init__(self, name: str = "m") -> None:
        self.name = name
        self.sent: list[contract.Command] = []

    def send(self, command: contract.Command) -> None:
        self.sent.append(command)


class FakeEncoders:
    def __init__(self) -> None:
        self.open: list[str] = []
        self.wishes: list[tuple[str, int | str]] = []

    def open_session(self, request: SessionRequest, description: contract.ModelDescription) -> None:
        self.open.append(request.session_id)

    def open_vp8(self, session_id: str) -> None:
        self.wishes.append((session_id, "vp8"))

    def close_vp8(self, session_id: str) -> None:
        self.wishes.append((session_id, "no vp8"))

    def request_key_frame(self, session_id: str, codec: contract.Codec = "h264") -> None:
        self.wishes.append((session_id, "key frame"))

    def estimate_bitrate(self, session_id: str, bits_per_s: int) -> None:
        self.wishes.append((session_id, bits_per_s))

    def close_session(self, session_id: str) -> None:
        self.open.remove(session_id)


class Book:
    """EngineSessions between fakes."""

    def __init__(self) -> None:
        self.leader, self.encoders = FakeLeader(), FakeEncoders()
        self.events: list[EngineEvent] = []
        self.sessions = EngineSessions(self.encoders, self.events.append)

    def start(self, session_id: str = "s") -> None:
        self.sessions.start(SessionRequest(session_id, "m", 0, "", "lossy"), self.leader, DESCRIPTION)

    def open(self, session_id: str = "s") -> None:
        self.start(session_id)
        self.hear(contract.SessionStarted(session_id))
        self.sessions.on_encode_report(contract.EncoderOpened(session_id, "avc1"))

    def hear(self, report: contract.Report) -> None:
        self.sessions.on_leader_report(self.leader, report)

    def packet(self, seq: int, session_id: str = "s") -> None:
        self.sessions.on_packet(PacketArrived(contract.PacketHeader(session_id, seq, 0, 0, seq - 1, False, 0, 0), b"x"))

    def ended(self) -> list[tuple[str, int, str, bool]]:
        return [
            (event.session_id, event.last_seq, event.code, event.retryable)
            for event in self.events
            if isinstance(event, EngineSessionEnded)
        ]


def test_a_session_starts_when_both_sides_have_it_and_is_granted_then() -> None:
    book = Book()
    book.start()
    book.sessions.grant("s", 8)
    book.sessions.on_encode_report(contract.EncoderOpened("s", "avc1.42C01E"))
    assert book.events == [] and book.leader.sent == [contract.StartSession("s", 0, "")]
    book.hear(contract.SessionStarted("s"))
    assert book.events == [EngineSessionStarted("s", "avc1.42C01E")]
    assert book.leader.sent[1:] == [contract.GrantFrames("s", 8)]
    book.sessions.grant("s", 6)
    book.sessions.grant("s", 10)
    assert book.leader.sent[2:] == [contract.GrantFrames("s", 10)]


def test_the_end_waits_for_the_last_packet() -> None:
    book = Book()
    book.open()
    book.packet(1)
    book.sessions.end("s")
    book.hear(contract.SessionEnded("s", 2))
    assert book.ended() == [] and book.encoders.open == ["s"]
    book.packet(2)
    assert book.ended() == [("s", 2, "ended", False)] and book.encoders.open == []
    book.packet(3)
    book.hear(contract.SessionEnded("s", 3))
    book.sessions.grant("s", 20)
    assert isinstance(book.events[-1], EngineSessionEnded)


@pytest.mark.parametrize("is_told_first", [True, False])
def test_a_discarded_session_waits_for_no_packet(is_told_first: bool) -> None:
    book = Book()
    book.open()
    book.packet(1)
    if is_told_first:
        book.sessions.end("s")
        book.hear(contract.SessionEnded("s", 6))
        assert book.ended() == []
        book.sessions.end("s", discard=True)
    else:
        book.sessions.end("s", discard=True)
        book.sessions.end_all()
        assert contract.EndSession("s", discard=True) in book.leader.sent and book.ended() == []
        book.hear(contract.SessionEnded("s", 6))
    assert book.ended() == [("s", 1, "ended", False)] and book.encoders.open == []


def test_a_leader_that_is_lost_after_its_last_word_changes_nothing() -> None:
    book = Book()
    book.open()
    book.hear(contract.SessionEnded("s", 1, "finished"))
    book.packet(1)
    book.sessions.on_group_lost(book.leader, FAILURE)
    assert book.ended() == [("s", 1, "finished", False)]


def test_a_lost_group_ends_its_own_sessions_only() -> None:
    book = Book()
    book.open("mine")
    other = FakeLeader("other")
    book.sessions.start(SessionRequest("other's", "other", 0, "", "lossy"), other, DESCRIPTION)
    book.packet(1, "mine")
    book.sessions.on_group_lost(book.leader, FAILURE)
    assert book.ended() == [("mine", 1, "worker_lost", True)]
    assert book.encoders.open == ["other's"]


def test_a_lost_encoder_ends_all_and_tells_the_leaders() -> None:
    book = Book()
    book.open("a")
    book.start("b")
    book.sessions.on_encode_lost(FAILURE)
    assert book.ended() == [("a", 0, "encoder_lost", True), ("b", 0, "encoder_lost", True)]
    assert book.leader.sent[-2:] == [contract.EndSession("a", discard=True), contract.EndSession("b", discard=True)]


def test_an_encoder_that_fails_ends_its_session() -> None:
    book = Book()
    book.open()
    book.packet(1)
    book.sessions.on_encode_report(contract.EncoderFailed("s", "encode_failed", "no"))
    assert book.ended() == [("s", 1, "encode_failed", False)]
    assert book.leader.sent[-1] == contract.EndSession("s", discard=True)


def test_a_gap_in_the_packets_breaks_the_stream() -> None:
    book = Book()
    book.open()
    book.packet(1)
    book.packet(3)
    assert book.ended() == [("s", 1, "stream_broken", True)]
    assert [event.header.seq for event in book.events if isinstance(event, PacketArrived)] == [1]


def test_steps_are_timed_while_the_session_runs() -> None:
    book = Book()
    book.open()
    book.hear(contract.StepCompleted("s", 0, 2, 7, 12.5))
    assert book.events[-1] == StepTimed("m", "s", 0, 7, 12.5)
    book.hear(contract.StepCompleted("unknown", 0, 2, 7, 12.5))
    assert len(book.events) == 2


def test_wishes_reach_the_encoder_while_the_session_runs() -> None:
    book = Book()
    book.open()
    book.sessions.request_key_frame("s")
    book.sessions.estimate_bitrate("s", 1_000_000)
    book.sessions.on_encode_lost(FAILURE)
    book.sessions.request_key_frame("s")
    book.sessions.estimate_bitrate("s", 2_000_000)
    assert book.encoders.wishes == [("s", "key frame"), ("s", 1_000_000)]


def test_an_id_in_use_is_refused() -> None:
    book = Book()
    book.start()
    with pytest.raises(EngineError) as refused:
        book.start()
    assert refused.value.code == "session_exists"


from_leader = ("open", "step", "leader_ended", "group_lost")
from_encode = ("encoder", "packet", "encoder_failed", "encode_lost")
happenings = st.sampled_from([*from_leader, *from_encode, "grant", "end", "stopped"])


@given(st.lists(st.tuples(happenings, st.sampled_from(["a", "b"])), max_size=40))
def test_whatever_happens_each_session_ends_once_and_is_silent_after(history: list[tuple[str, str]]) -> None:
    book = Book()
    book.start("a")
    book.start("b")
    seqs = {"a": 0, "b": 0}
    for what, name in [*history, ("stopped", "")]:
        match what:
            case "open":
                book.hear(contract.SessionStarted(name))
            case "encoder":
                book.sessions.on_encode_report(contract.EncoderOpened(name, "avc1"))
            case "packet":
                seqs[name] += 1
                book.packet(seqs[name], name)
            case "step":
                book.hear(contract.StepCompleted(name, 0, 2, 0, 1.0))
            case "end":
                book.sessions.end(name)
            case "leader_ended":
                book.hear(contract.SessionEnded(name, seqs[name] + 1))
            case "encoder_failed":
                book.sessions.on_encode_report(contract.EncoderFailed(name, "encode_failed", ""))
            case "group_lost":
                book.sessions.on_group_lost(book.leader, FAILURE)
            case "encode_lost":
                book.sessions.on_encode_lost(FAILURE)
            case "stopped":
                book.sessions.on_stopped()
            case "grant":
                book.sessions.grant(name, seqs[name] + 4)
    assert sorted(ended[0] for ended in book.ended()) == ["a", "b"]
    assert book.encoders.open == []
    for name in ("a", "b"):
        said = [event for event in book.events if _session_of(event) == name]
        assert isinstance(said[-1], EngineSessionEnded)
        assert said[-1].last_seq == len([event for event in said if isinstance(event, PacketArrived)])


def _session_of(event: EngineEvent) -> str:
    return event.header.session_id if isinstance(event, PacketArrived) else getattr(event, "session_id", "")


def test_packets_in_vp8_come_beside_the_stream_and_count_for_nothing() -> None:
    book = Book()
    book.open("a")
    book.sessions.open_vp8("a")
    book.sessions.request_key_frame("a", "vp8")
    book.sessions.close_vp8("a")
    book.sessions.open_vp8("unknown")
    assert book.encoders.wishes == [("a", "vp8"), ("a", "key frame"), ("a", "no vp8")]
    for seq in (1, 2):
        for codec in typing.get_args(contract.Codec):
            header = contract.PacketHeader("a", seq, 0, 0, seq - 1, seq == 1, 0, 0, codec=codec)
            book.sessions.on_packet(PacketArrived(header, b"x"))
    packets = [event.header for event in book.events if isinstance(event, PacketArrived)]
    assert [(header.seq, header.codec) for header in packets] == [(1, "h264"), (1, "vp8"), (2, "h264"), (2, "vp8")]
