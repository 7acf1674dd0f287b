"""The load client: its arithmetic, its way from packets to access units, and what it prints."""

from __future__ import annotations

import asyncio
import json
import math
import xml.etree.ElementTree
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from websockets.asyncio.server import ServerConnection, serve
from websockets.datastructures import Headers
from websockets.http11 import Request, Response

from ithaka.workers.encoding.frame_number import FRAME_NUMBER_UUID as SERVERS_UUID
from ithaka.workers.encoding.frame_number import with_frame_number
from ithaka_client.bench.access_unit import (
    FRAME_NUMBER_UUID,
    AccessUnit,
    is_key_frame,
    is_vp8_key_frame,
    numbered_h264,
    read_frame_number,
)
from ithaka_client.bench.account import Account, spread
from ithaka_client.bench.assembler import MAX_WAITING_FRAMES, Assembler
from ithaka_client.bench.carriers import WebSocketCarrier, read_within
from ithaka_client.bench.load import RunResult
from ithaka_client.bench.numbering import MAX_WAITING, Numbering
from ithaka_client.bench.plan import Arrival, Plan
from ithaka_client.bench.report import as_json, as_svg, as_table, nice_ticks
from ithaka_client.errors import ConnectFailedError, ConnectionLostError, DeadlineError, ProtocolError, StreamRefusedError
from ithaka_client.protocol import Numbered

PLAN = Plan("http://127.0.0.1:1", "a secret key", "m", 1, "webrtc", "live", 1.0, 10.0, True)
MS = 1_000_000
KEY_UNIT, PLAIN_UNIT = b"\x00\x00\x00\x01\x67k", b"\x00\x00\x00\x01\x41p"


def account(chunk_frames: int = 1) -> Account:
    return Account("s", fps=10, chunk_frames=chunk_frames, begun_ns=0)


def arrive(known: Account, seq: int, at_ms: float, *, generated_ms: float = 0, control_id: int = 0) -> None:
    known.frame_arrived(Arrival(seq, control_id, int(generated_ms * MS), int(at_ms * MS)))


def test_every_missing_frame_is_named_and_a_repeated_one_counts_once() -> None:
    known = account()
    for seq in (1, 2, 2, 5):
        arrive(known, seq, 100 * seq)
    result = known.result(declared_frames=6, dropped_frames=1, error=None)
    assert (result.received_frames, result.lost_frames, result.lost) == (3, 3, (3, 4, 6))
    assert result.dropped_frames == 1 and result.first_frame_ms == 100


def test_rate_and_delays_are_those_of_the_frames() -> None:
    known = account()
    for seq in range(1, 12):
        arrive(known, seq, 1000 + 100 * seq, generated_ms=1000 + 100 * seq - 20 - seq)
    result = known.result(declared_frames=11, dropped_frames=0, error=None)
    assert result.fps == pytest.approx(10)
    assert (result.generated_to_decoded_ms.p50, result.generated_to_decoded_ms.largest) == (26, 31)


@pytest.mark.parametrize(("chunk_frames", "gap_ms", "stalls"), [(1, 300, 0), (1, 301, 1), (4, 600, 0), (4, 601, 1)])
def test_a_gap_is_a_stall_from_three_periods_beyond_a_chunk(chunk_frames: int, gap_ms: int, stalls: int) -> None:
    known = account(chunk_frames)
    arrive(known, 1, 0)
    arrive(known, 2, gap_ms)
    result = known.result(declared_frames=2, dropped_frames=0, error=None)
    assert (result.stalls, result.stalled_ms) == (stalls, stalls * gap_ms)


def test_a_control_is_seen_in_the_first_frame_that_used_it() -> None:
    known = account()
    known.control_sent(1, 10 * MS)
    known.control_sent(2, 20 * MS)
    known.control_sent(3, 30 * MS)
    arrive(known, 1, 50, control_id=0)
    arrive(known, 2, 100, control_id=2)
    arrive(known, 3, 200, control_id=2)
    reactions = known.result(declared_frames=3, dropped_frames=0, error=None).control_to_photon_ms
    assert (reactions.p50, reactions.largest) == (80, 90), "the third was never used"


@settings(deadline=None)
@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=200))
def test_percentiles_are_measured_values_in_order(values: list[float]) -> None:
    known = spread(values)
    assert known.p50 in values and known.p95 in values and known.p99 in values
    assert known.p50 is not None and known.p95 is not None and known.p99 is not None
    assert known.p50 <= known.p95 <= known.p99 <= max(values) == known.largest


def test_both_sides_mean_the_same_number() -> None:
    assert FRAME_NUMBER_UUID == SERVERS_UUID
    unit = bytes(with_frame_number(memoryview(KEY_UNIT + PLAIN_UNIT), seq=5, control_id=6, generated_ns=7))
    assert read_frame_number(unit) == (5, 6, 7)
    assert is_key_frame(unit) and not is_key_frame(PLAIN_UNIT)
    assert read_frame_number(PLAIN_UNIT) is None
    assert read_frame_number(FRAME_NUMBER_UUID.bytes + b"x" * 48) is None
    assert numbered_h264(unit) == AccessUnit(5, 6, 7, True, unit)
    with pytest.raises(ProtocolError, match="no number"):
        numbered_h264(PLAIN_UNIT)


# -- packets -----------------------------------------------------------------------------------------------------------


@dataclass
class Packet:
    sequence_number: int
    timestamp: int
    marker: int
    _data: bytes


def packets_of(frame_sizes: list[int], first: int, keys: frozenset[int] = frozenset()) -> tuple[list[Packet], list[bytes]]:
    """Packets of frames of so many packets each, and their access units."""
    packets: list[Packet] = []
    units = []
    for index, size in enumerate(frame_sizes):
        head = KEY_UNIT if index == 0 or index in keys else PLAIN_UNIT
        parts = [head + bytes([index & 255])] + [bytes([index & 255, part]) for part in range(1, size)]
        units.append(b"".join(parts))
        for part, data in enumerate(parts):
            packets.append(Packet((first + len(packets)) & 0xFFFF, 90 * index, int(part == size - 1), data))
    return packets, units


@settings(deadline=None)
@given(st.lists(st.integers(1, 6), min_size=1, max_size=40), st.integers(0, 65_535), st.randoms(use_true_random=False))
def test_frames_come_out_whole_in_order_whatever_the_order_of_close_packets(
    sizes: list[int], first: int, random: object
) -> None:
    packets, units = packets_of(sizes, first)
    shuffled = packets[:1]
    rest = packets[1:]
    while rest:
        shuffled.append(rest.pop(random.randrange(min(4, len(rest)))))  # type: ignore[attr-defined]
    got: list[bytes] = []
    assembler = Assembler(lambda _, unit: got.append(unit), is_key_frame)
    for packet in shuffled:
        assert assembler.add(packet) == (False, None)
    assert got == units


def test_a_frame_is_given_away_with_its_last_packet() -> None:
    packets, units = packets_of([3], 0)
    got: list[bytes] = []
    assembler = Assembler(lambda _, unit: got.append(unit), is_key_frame)
    for packet in packets[:2]:
        assembler.add(packet)
    assert got == []
    assembler.add(packets[2])
    assert got == units


def test_a_lost_packet_costs_everything_through_the_next_key_frame_and_asks_for_one() -> None:
    packets, units = packets_of([2] * 20, 65_530, keys=frozenset({14}))
    got: list[bytes] = []
    assembler = Assembler(lambda _, unit: got.append(unit), is_key_frame)
    asked = [assembler.add(packet)[0] for packet in packets if packet is not packets[5]]
    assert got == [*units[:2], *units[14:]]
    assert asked.count(True) == 1


def test_a_late_packet_in_time_costs_nothing_and_a_repeated_one_changes_nothing() -> None:
    packets, units = packets_of([2] * MAX_WAITING_FRAMES, 0)
    got: list[bytes] = []
    assembler = Assembler(lambda _, unit: got.append(unit), is_key_frame)
    for packet in (*packets[:3], *packets[4:], packets[3], packets[0], packets[3]):
        assembler.add(packet)
    assert got == units


@settings(deadline=None)
@given(st.permutations(range(12)), st.permutations(range(12)), st.sets(st.integers(0, 11)), st.randoms(use_true_random=False))
def test_a_picture_in_vp8_goes_with_its_number_whichever_comes_first(
    pictures: list[int], numbers: list[int], lost: set[int], random: object
) -> None:
    """Of a picture that was lost the number alone comes; nothing is counted twice."""
    numbering, joined = Numbering(), list[AccessUnit]()
    pictures = [seq for seq in pictures if seq not in lost]
    while pictures or numbers:
        takes_picture = bool(pictures) and (not numbers or random.random() < 0.5)  # type: ignore[attr-defined]
        seq = pictures.pop() if takes_picture else numbers.pop()
        if takes_picture:
            unit = numbering.picture_came(90 * seq, b"\x10" + bytes([seq]), is_key=seq == 0)
        else:
            unit = numbering.number_came(Numbered(seq, seq + 1, seq * 1000, 90 * seq))
        joined += [] if unit is None else [unit]
    assert sorted(joined, key=lambda unit: unit.seq) == [
        AccessUnit(seq, seq + 1, seq * 1_000_000, seq == 0, b"\x10" + bytes([seq])) for seq in range(12) if seq not in lost
    ]


def test_pictures_and_numbers_that_wait_for_ever_are_bounded() -> None:
    numbering = Numbering()
    for seq in range(MAX_WAITING + 1):
        assert numbering.picture_came(seq, b"", is_key=False) is None
        assert numbering.number_came(Numbered(seq, 0, 0, 100_000 + seq)) is None
    assert numbering.number_came(Numbered(0, 0, 0, 0)) is None, "the oldest picture was let go"
    assert numbering.number_came(Numbered(MAX_WAITING, 0, 0, MAX_WAITING)) is not None


def test_a_track_in_vp8_goes_on_at_its_own_key_frame() -> None:
    assert is_vp8_key_frame(b"\x10\x02") and not is_vp8_key_frame(b"\x11\x02") and not is_vp8_key_frame(b"")
    got: list[tuple[int, bytes]] = []
    assembler = Assembler(lambda timestamp, picture: got.append((timestamp, picture)), is_vp8_key_frame)
    for number in range(30):
        if number != 3:
            assembler.add(Packet(number, 90 * number, 1, b"\x10" if number in (0, 20) else b"\x11"))
    assert [timestamp // 90 for timestamp, _ in got] == [0, 1, 2, *range(20, 30)]


# -- reports -----------------------------------------------------------------------------------------------------------


def result_of(plan: Plan = PLAN) -> RunResult:
    known = account()
    for seq in range(1, 40):
        arrive(known, seq, 100 * seq, generated_ms=100 * seq - 12)
    whole = known.result(declared_frames=40, dropped_frames=0, error=None)
    return RunResult(plan, (whole, replace(whole, error="TimeoutError: nothing came")), tuple(known.delays_ms))


def test_the_report_for_machines_is_whole_and_keeps_the_key_to_itself() -> None:
    text = as_json(result_of())
    document = json.loads(text)
    assert "secret" not in text
    assert document["plan"]["transport"] == "webrtc" and len(document["sessions"]) == 2
    assert document["total"]["lost_frames"] == 2 and document["total"]["failed_sessions"] == 1
    assert document["total"]["generated_to_decoded_ms"]["p95"] == 12


def test_the_table_has_a_line_for_each_session_one_for_all_and_the_errors() -> None:
    lines = as_table(result_of()).splitlines()
    assert len(lines) == 5 and lines[-1] == "session 1: TimeoutError: nothing came"
    assert len({len(line) for line in lines[:4]}) == 1, "columns stand under each other"


@settings(deadline=None)
@given(st.floats(1e-3, 1e9))
def test_ticks_are_round_even_and_just_enough(most: float) -> None:
    ticks = nice_ticks(most)
    step = ticks[1]
    assert ticks[0] == 0 and ticks[-2] < most <= ticks[-1] * (1 + 1e-9) and len(ticks) <= 6
    assert all(math.isclose(tick, step * number) for number, tick in enumerate(ticks))
    assert f"{step:e}"[0] in "125" and math.isclose(step, float(f"{step:.0e}"))


def test_a_picture_of_eighteen_milliseconds_is_marked_at_each_fifth() -> None:
    texts = [element.text for element in xml.etree.ElementTree.fromstring(as_svg(replace(result_of(), delays_ms=(3.0, 18.0))))]
    assert [text for text in texts if text and text.endswith(" ms")] == ["0 ms", "5 ms", "10 ms", "15 ms", "20 ms"]


@pytest.mark.parametrize("num_delays", [0, 1, 5000])
def test_the_picture_is_well_formed(num_delays: int) -> None:
    result = replace(result_of(), delays_ms=tuple(float(delay % 97) for delay in range(num_delays)))
    root = xml.etree.ElementTree.fromstring(as_svg(result))
    assert root.tag.endswith("svg")


@pytest.mark.parametrize(
    "wrong",
    [
        {"num_sessions": 0},
        {"duration_s": 0},
        {"controls_per_s": -1},
        {"delivery": "lossless"},
        {"transport": "websocket", "codec": "vp8"},
    ],
)
def test_what_can_not_be_run_is_told(wrong: dict[str, object]) -> None:
    assert PLAN.problem() is None
    assert replace(PLAN, **wrong).problem() is not None  # type: ignore[arg-type]


# -- what goes wrong on the way ----------------------------------------------------------------------------------------


async def websocket_to(server: object) -> WebSocketCarrier:
    port = next(iter(server.sockets)).getsockname()[1]  # type: ignore[attr-defined]
    return WebSocketCarrier(f"http://127.0.0.1:{port}", "/v1/sessions/abc", "tok")


@pytest.mark.parametrize(
    ("status", "body", "kind", "words"),
    [
        (
            409,
            b'{"error": {"code": "session_ended", "message": "It is over."}}',
            StreamRefusedError,
            "It is over. [session_ended]",
        ),
        (503, b'{"error": {"code": "server_stopping", "message": "Later."}}', ConnectFailedError, "Later. [server_stopping]"),
        (502, b"<html>", ConnectFailedError, "The server answered the upgrade with HTTP status 502. [connect_failed]"),
        (401, b"", StreamRefusedError, "The session's token is missing or has expired; ask for a fresh one. [token_invalid]"),
    ],
)
async def test_a_refused_websocket_is_told_in_the_servers_words(
    status: int, body: bytes, kind: type[Exception], words: str
) -> None:
    def refuse(connection: ServerConnection, request: Request) -> Response:
        return Response(status, "No", Headers({"Content-Length": str(len(body))}), body)

    async def never(socket: ServerConnection) -> None:
        raise AssertionError

    async with serve(never, "127.0.0.1", 0, process_request=refuse) as server:
        with pytest.raises(kind) as caught:
            await (await websocket_to(server)).open()
    assert str(caught.value) == words


async def test_silence_is_told_with_what_was_waited_for_and_a_cut_is_no_end() -> None:
    cut = asyncio.Event()

    async def be_silent(socket: ServerConnection) -> None:
        await cut.wait()
        socket.transport.abort()

    async with serve(be_silent, "127.0.0.1", 0, subprotocols=["ithaka.v1"]) as server:  # type: ignore[list-item]
        carrier = await websocket_to(server)
        await carrier.open()
        with pytest.raises(
            DeadlineError, match=r"^Nothing came for 0\.05 s.* while waiting for frame 7\. \[connection_silent\]$"
        ):
            await read_within(carrier, 0.05, awaited="frame 7")
        cut.set()
        with pytest.raises(ConnectionLostError):
            await read_within(carrier, 30, awaited="frame 7")
        await carrier.close()
