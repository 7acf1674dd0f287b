"""Candidates that come after an offer: so many in a second, and so many in a connection's life."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from aiortc import RTCIceCandidate

from ithaka.server.errors import ApiError
from ithaka.server.session.rate import RateBound
from ithaka.server.transports.webrtc.candidate_line import place_of
from ithaka.server.transports.webrtc.offer import MAX_CANDIDATES, Offer, read_fragment
from ithaka.server.transports.webrtc.places import Places

MAX_FRAGMENTS_PER_S = 20
"""A browser sends one for each of its candidates at worst, and has fewer."""


class Trickle:
    """The peer's side of one connection. ICE compares each candidate with all that came before and forgets none."""

    def __init__(self, offer: Offer, now_s: Callable[[], float]) -> None:
        self._offer = offer
        self._now_s = now_s
        self._rate = RateBound(MAX_FRAGMENTS_PER_S, now_s())
        self._places = Places(MAX_CANDIDATES, offer.places)

    def read(self, text: str) -> Sequence[RTCIceCandidate]:
        """The candidates that are new; all that the fragment names, or none.

        Raises ApiError ``fragments_too_fast``, ``sdp_invalid``, ``ice_restart_unsupported``, ``candidates_full``.
        """
        if not self._rate.take(self._now_s()):
            message = f"more than {MAX_FRAGMENTS_PER_S} fragments in a second; one may name many candidates"
            raise ApiError("fragments_too_fast", message, headers={"Retry-After": "1"})
        fragment = read_fragment(text)
        if fragment.ice_username and fragment.ice_username != self._offer.ice_username:
            raise ApiError("ice_restart_unsupported", "this connection can't change its ICE session; open another one")
        fragment.check(self._offer.mids)
        named = {place_of(candidate): candidate for candidate in fragment.candidates}
        new = [candidate for place, candidate in named.items() if place not in self._places]
        if not self._places.take(named):
            message = f"a connection takes {MAX_CANDIDATES} candidates in its life, those of the offer among them"
            raise ApiError("candidates_full", message)
        return new
