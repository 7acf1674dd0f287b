"""Brings the pictures of a track in VP8 together with their numbers, which come as messages. Pure; bounded."""

from __future__ import annotations

from collections import OrderedDict

from ithaka_client.bench.access_unit import AccessUnit
from ithaka_client.protocol import Numbered

MAX_WAITING = 256
"""Pictures whose message has not come, and numbers whose picture has not: the oldest are let go, and so count as lost."""


class Numbering:
    def __init__(self) -> None:
        self._pictures: OrderedDict[int, tuple[bytes, bool]] = OrderedDict()
        self._numbers: OrderedDict[int, Numbered] = OrderedDict()

    def picture_came(self, rtp_timestamp: int, data: bytes, *, is_key: bool) -> AccessUnit | None:
        """The picture with its number, when that is there."""
        self._pictures[rtp_timestamp] = (data, is_key)
        return self._joined(rtp_timestamp)

    def number_came(self, number: Numbered) -> AccessUnit | None:
        """The picture with its number, when that is there."""
        self._numbers[number.rtp_timestamp] = number
        return self._joined(number.rtp_timestamp)

    def _joined(self, rtp_timestamp: int) -> AccessUnit | None:
        if rtp_timestamp in self._pictures and rtp_timestamp in self._numbers:
            data, is_key = self._pictures.pop(rtp_timestamp)
            number = self._numbers.pop(rtp_timestamp)
            return AccessUnit(number.seq, number.control_id, number.generated_us * 1000, is_key, data)
        for waiting in (self._pictures, self._numbers):
            if len(waiting) > MAX_WAITING:
                waiting.popitem(last=False)
        return None
