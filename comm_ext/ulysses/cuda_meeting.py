"""How ranks find out together whether the CUDA engine can serve them, and find each other's arenas.

Each rank has two pages behind the control block of the group's memfd and writes them in turn, one fact card at a time. The
first card is written before the join, which makes it visible to all who joined; the others by an agreed call of the rendezvous.
"""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Mapping, Sequence
from typing import Any

from ithaka.comm_ext.ulysses.control_block import PAGE_BYTES, control_bytes
from ithaka.comm_ext.ulysses.cuda_topology import unreachable
from ithaka.comm_ext.ulysses.group import RankGroup
from ithaka.comm_ext.ulysses.plan import signature
from ithaka.comm_ext.ulysses.rendezvous import Rendezvous

_LENGTH_BYTES = 8
_MAX_REASON_CHARS = 1000


class CardTable:
    """Cards of all ranks, in rounds. A page is written again two rounds later, when all have read it."""

    def __init__(self, group: RankGroup) -> None:
        self._rank, self._num_ranks = group.rank, group.num_ranks
        self._first = control_bytes(group.num_ranks)
        total = self._first + 2 * group.num_ranks * PAGE_BYTES
        os.ftruncate(group.arena_fd, total)  # the same on all ranks
        self._mapping = mmap.mmap(group.arena_fd, total)
        self._round = 0

    def write(self, card: Mapping[str, Any]) -> None:
        """Leave this rank's card of the current round."""
        data = json.dumps(card).encode()
        if len(data) > PAGE_BYTES - _LENGTH_BYTES:
            raise ValueError(f"a card of {len(data)} bytes does not fit its page")
        start = self._start(self._rank)
        self._mapping[start + _LENGTH_BYTES : start + _LENGTH_BYTES + len(data)] = data
        self._mapping[start : start + _LENGTH_BYTES] = len(data).to_bytes(_LENGTH_BYTES, "little")

    def read_all(self) -> list[dict[str, Any]]:
        """All cards of the current round, which all ranks are known to have written; begins the next round."""
        cards = []
        for rank in range(self._num_ranks):
            start = self._start(rank)
            length = int.from_bytes(self._mapping[start : start + _LENGTH_BYTES], "little")
            cards.append(json.loads(self._mapping[start + _LENGTH_BYTES : start + _LENGTH_BYTES + length]))
        self._round += 1
        return cards

    def share(self, rendezvous: Rendezvous, card: Mapping[str, Any], *, timeout_s: float | None = None) -> list[dict[str, Any]]:
        """One round after the join: write, meet, read. Raises UlyssesPeerError."""
        self.write(card)
        rendezvous.settle(rendezvous.post(signature(f"cuda cards {self._round}")), timeout_s=timeout_s)
        return self.read_all()

    def close(self) -> None:
        """Unmap the pages."""
        self._mapping.close()

    def _start(self, rank: int) -> int:
        return self._first + (2 * rank + self._round % 2) * PAGE_BYTES


def obstacle(cards: Sequence[Mapping[str, Any]]) -> str | None:
    """Why these ranks can't use the CUDA engine together, the same words on every rank; None if they can."""
    for rank, card in enumerate(cards):
        if card["error"]:
            return f"rank {rank}: {str(card['error'])[:_MAX_REASON_CHARS]}"
    for rank, card in enumerate(cards):
        for name in ("source_hash", "calibration"):
            if card[name] != cards[0][name]:
                return f"rank {rank} has another {name.replace('_', ' ')} than rank 0: build and install the same on all"
        for other in range(rank):
            same_process = card["pid"] == cards[other]["pid"]
            if card["uuid"] == cards[other]["uuid"] and not same_process:
                return f"ranks {other} and {rank} share one GPU from two processes: give each a device of its own"
    return unreachable(cards)
