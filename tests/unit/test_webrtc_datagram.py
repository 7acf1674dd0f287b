"""What may pass to the libraries: all that they say themselves, and nothing that they would fail on."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from aioice import stun
from hypothesis import given, settings
from hypothesis import strategies as st

from ithaka.server.transports.webrtc.datagram import MAX_DATAGRAM_BYTES, kind_of

ID = b"0" * 12
COOKIE = bytes.fromhex("2112a442")
ADDRESSES = st.tuples(st.one_of(st.ip_addresses(v=4), st.ip_addresses(v=6)).map(str), st.integers(0, 65_535))
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "pack_address": ADDRESSES,
    "pack_xor_address": ADDRESSES,
    "pack_unsigned": st.integers(0, 2**32 - 1),
    "pack_unsigned_short": st.integers(0, 2**16 - 1),
    "pack_unsigned_64": st.integers(0, 2**64 - 1),
    "pack_string": st.text(max_size=40),
    "pack_bytes": st.binary(max_size=40),
    "pack_none": st.none(),
    "pack_error_code": st.tuples(st.integers(300, 699), st.text(max_size=20)),
}
BY_ITSELF = {"MESSAGE-INTEGRITY", "FINGERPRINT"}
"""Written when a message is signed."""
KNOWN = {name: VALUES[pack.__name__] for _, name, pack, _ in stun.ATTRIBUTES if name not in BY_ITSELF}


@st.composite
def messages(draw: st.DrawFn) -> stun.Message:
    names = draw(st.lists(st.sampled_from(sorted(KNOWN)), unique=True, max_size=8))
    message = stun.Message(
        draw(st.sampled_from(stun.Method)),
        draw(st.sampled_from(stun.Class)),
        draw(st.binary(min_size=12, max_size=12)),
        {name: draw(KNOWN[name]) for name in names},
    )
    match draw(st.sampled_from(["plain", "fingerprint", "signed"])):
        case "fingerprint":
            message.add_fingerprint()
        case "signed":
            message.add_message_integrity(b"password")
    return message


def attribute(number: int, value: bytes) -> bytes:
    return struct.pack("!HH", number, len(value)) + value + bytes(-len(value) % 4)


def stun_of(body: bytes, kind: int = 1) -> bytes:
    return struct.pack("!HH", kind, len(body)) + COOKIE + ID + body


@st.composite
def near_stun(draw: st.DrawFn) -> bytes:
    """A header that is right for attributes that may not be."""
    number = st.one_of(st.sampled_from([known for known, _, _, _ in stun.ATTRIBUTES]), st.integers(0, 65_535))
    bodies = draw(st.lists(st.tuples(number, st.binary(max_size=24)), max_size=5))
    cut = draw(st.integers(0, 4))
    body = b"".join(attribute(*one) for one in bodies)
    return stun_of(body[: len(body) - cut], draw(st.integers(0, 0x3FF)))


@settings(deadline=None)
@given(messages())
def test_every_message_of_the_library_passes(message: stun.Message) -> None:
    data = bytes(message)
    assert kind_of(data) == "stun"
    assert stun.parse_message(data).message_method == message.message_method


@settings(deadline=None)
@given(st.one_of(st.binary(max_size=200), near_stun(), messages().map(bytes)))
def test_what_passes_as_stun_is_read_without_an_error(data: bytes) -> None:
    if kind_of(data) == "stun":
        stun.parse_message(data)


@settings(deadline=None)
@given(messages(), st.data())
def test_a_damaged_message_passes_only_where_it_can_still_be_read(message: stun.Message, data: st.DataObject) -> None:
    damaged = bytearray(bytes(message))
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    if kind_of(bytes(damaged)) == "stun":
        stun.parse_message(bytes(damaged))


@settings(deadline=None)
@given(st.binary(min_size=1, max_size=100))
def test_the_first_byte_says_what_the_rest_may_be(data: bytes) -> None:
    ranges = {"stun": range(4), "dtls": range(20, 64), "rtp": range(128, 192)}
    kind = kind_of(data)
    assert kind is None or data[0] in ranges[kind]


@pytest.mark.parametrize("first", [*range(4, 20), *range(64, 128), *range(192, 256)])
def test_what_no_part_of_a_connection_begins_with_is_nothing(first: int) -> None:
    assert kind_of(bytes([first]) + bytes(60)) is None


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"", None),
        (b"\x00", None),
        (b"\x16", None),
        (b"\x80", None),
        (b"\x80\x60" + bytes(9), None),
        (b"\x80\x60" + bytes(10), "rtp"),
        (b"\x80\xc8" + bytes(MAX_DATAGRAM_BYTES - 1), None),
        (b"\x80\xc8" + bytes(MAX_DATAGRAM_BYTES - 2), "rtp"),
        (b"\x16\xfe\xfd" + bytes(9), None),
        (b"\x16\xfe\xfd" + bytes(10), "dtls"),
        (b"\x16\x03\x03" + bytes(10), None),
        (b"\x2f", "dtls"),
        (stun_of(b""), "stun"),
        (stun_of(b"")[:-1], None),
        (stun_of(b"") + b"\0\0\0\0", None),
        (stun_of(b"", 0x0005), None),
        (stun_of(b"").replace(COOKIE, b"\0\0\0\0"), None),
        (stun_of(attribute(0x0006, b"\xff")), None),
        (stun_of(attribute(0x0006, b"\xc3\xbc")), "stun"),
        (stun_of(attribute(0x0008, bytes(19))), None),
        (stun_of(attribute(0x0009, b"\0\0\4")), None),
        (stun_of(attribute(0x0020, b"\0\3" + bytes(6))), None),
        (stun_of(attribute(0x0020, b"\0\1" + bytes(7))), None),
        (stun_of(attribute(0x0024, b"\0")), None),
        (stun_of(attribute(0x0025, b"\0")), None),
        (stun_of(attribute(0x8028, bytes(4))), None),
        (stun_of(attribute(0x8029, bytes(7))), None),
        (stun_of(attribute(0x7777, b"anything")), "stun"),
        (stun_of(struct.pack("!HH", 0x7777, 60_000)), None),
        (stun_of(struct.pack("!HH", 0x7777, 1)), None),
    ],
)
def test_edges(data: bytes, kind: str | None) -> None:
    assert kind_of(data) == kind


def test_nothing_stands_behind_a_fingerprint() -> None:
    message = stun.Message(stun.Method.BINDING, stun.Class.REQUEST, ID)
    message.add_fingerprint()
    whole = bytes(message)
    assert kind_of(whole) == "stun"
    assert kind_of(stun_of(whole[20:] + attribute(0x8022, b""))) is None
