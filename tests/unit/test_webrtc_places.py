"""A set that is full says so, and keeps what it has."""

from __future__ import annotations

from ithaka.server.transports.webrtc.places import Places

A, B, C, D = (("192.0.2.1", port) for port in range(1, 5))


def test_the_same_place_counts_once() -> None:
    places = Places(2, [A])
    assert places.take([A, A]) and places.take([B, A]) and places.take([B])
    assert A in places and B in places and C not in places


def test_all_of_them_fit_or_none_is_taken() -> None:
    places = Places(3, [A])
    assert not places.take([B, C, D])
    assert B not in places
    assert places.take([B, C]) and not places.take([D]) and places.take([A, B, C]) and places.take([])


def test_more_than_fit_from_the_start_stay_and_no_other_comes() -> None:
    places = Places(1, [A, B])
    assert places.take([A, B]) and not places.take([C])
