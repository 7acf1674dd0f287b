"""How ranks meet over the control block: join once, count calls, wait for the others' counts, agree on the first fault.

A call has a number, the same on all ranks since all make the same calls in the same order. A rank announces its call by
leaving the call's signature in its ring and then raising its posted count: one arrival word for all peers. Whoever waits
for call n waits until every peer's count has reached n, and compares the signatures of all calls up to n. A refused call
takes a number too, with the signature 0, so that ranks which all refused agree and ranks which did not, notice.

Waits spin for a moment, then sleep in slices; each slice looks for ended processes. Time during which the waiter itself was
stopped does not count towards the timeout, so a suspended machine or a debugger on the whole group breaks nothing.
"""

from __future__ import annotations

import ctypes
import json
import logging
import mmap
import os
import time
from dataclasses import asdict, dataclass
from typing import Any, NoReturn

from ithaka.comm_ext.ulysses.control_block import NUM_RANKS_WORD, SIGNATURE_RING, ControlBlock, RankState, control_bytes
from ithaka.comm_ext.ulysses.errors import (
    UlyssesClosedError,
    UlyssesError,
    UlyssesErrorCode,
    UlyssesInputError,
    UlyssesPeerError,
)
from ithaka.comm_ext.ulysses.futex import Futex
from ithaka.comm_ext.ulysses.group import RankGroup
from ithaka.comm_ext.ulysses.peers import PeerWatch, ProcessIdentity

REFUSED = 0
MAX_UNSETTLED = 16
"""Calls that a rank may post without waiting; two ranks then differ by 2 x 16 calls at most, half the signature ring."""
_SLICE_S = 0.02
_SHORTEST_SPIN_NS = 20_000
_LONGEST_SPIN_NS = 300_000
_RECORD_WAIT_S = 0.1
_REFUSAL_CHARS = 300

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class WaitCounters:
    """Kept for ``describe``."""

    calls: int = 0
    refusals: int = 0
    slept: int = 0
    """Waits that outlasted the spin."""


class Rendezvous:
    """One rank's membership. Calls are made by one thread; any other may meanwhile check, report and abort."""

    def __init__(self, group: RankGroup, *, timeout_s: float) -> None:
        self._group = group
        self._rank = group.rank
        self._peers = tuple(rank for rank in range(group.num_ranks) if rank != group.rank)
        self._timeout_s = timeout_s
        self._mapping = mmap.mmap(group.arena_fd, control_bytes(group.num_ranks))
        anchor = ctypes.c_char.from_buffer(self._mapping)
        self._futex = Futex(ctypes.addressof(anchor))
        del anchor  # it would keep the mapping from closing
        self._control = ControlBlock(memoryview(self._mapping), group.num_ranks)
        self._words = self._control.words
        self._watch = PeerWatch({})
        self._number = 0
        self._settled = 0
        self._closed = False
        self._spin_ns = _LONGEST_SPIN_NS
        self.counters = WaitCounters()

    def join(self, facts: dict[str, Any], *, refusal: UlyssesError | None, timeout_s: float) -> None:
        """Meet the others and compare ``facts`` (plain values), or tell them that this rank can't take part.

        Raises ``refusal`` if given; UlyssesPeerError if a rank is missing, refuses, or differs: the same on every rank.
        """
        control, rank = self._control, self._rank
        if self._words[NUM_RANKS_WORD] != self._group.num_ranks:
            raise UlyssesInputError(
                UlyssesErrorCode.BAD_ARGUMENT,
                f"these descriptors were made for {self._words[NUM_RANKS_WORD]} ranks, not {self._group.num_ranks}",
            )
        if self._words[control.state_word[rank]] != RankState.ABSENT:
            raise UlyssesInputError(
                UlyssesErrorCode.BAD_ARGUMENT, f"rank {rank} of this group already joined: make new GroupDescriptors"
            )
        card = {"process": asdict(ProcessIdentity.own()), "facts": facts, "refusal": str(refusal or "")[:_REFUSAL_CHARS]}
        control.write_card(rank, json.dumps(card))
        self._enter(RankState.JOINED)
        if refusal is not None:
            raise refusal
        for peer in self._peers:
            if not self._await_state(peer, RankState.JOINED, timeout_s):
                self._break(UlyssesErrorCode.PEER_TIMED_OUT, peer, f"rank {peer} did not join within {timeout_s:g} s")
        cards = {peer: json.loads(control.read_card(peer)) for peer in self._peers}
        self._watch = PeerWatch({peer: ProcessIdentity(**cards[peer]["process"]) for peer in self._peers})
        for peer in self._peers:
            if cards[peer]["refusal"]:
                self._break(UlyssesErrorCode.PEER_REFUSED, peer, f"rank {peer} can't join: {cards[peer]['refusal']}")
            if cards[peer]["facts"] != facts:
                self._break(
                    UlyssesErrorCode.PEER_DISAGREED,
                    peer,
                    f"rank {peer} joined with {cards[peer]['facts']}, rank {rank} with {facts}",
                )

    def ensure_sound(self) -> None:
        """See Membership."""
        if self._words[self._control.fault_word]:
            self._raise_fault()

    def post(self, signature: int) -> int:
        """Announce a call whose bytes are written; its number."""
        words, control, rank = self._words, self._control, self._rank
        self._number = number = self._number + 1
        words[control.signature_word[rank] + number % SIGNATURE_RING] = signature
        self._futex.fence()
        words[control.posted_word[rank]] = number
        self._futex.full_fence()  # against a peer that marks itself asleep and then looks at the count, in _sleep
        for peer in self._peers:
            if words[control.asleep_word[peer]]:
                self._futex.wake(control.posted_word[rank])
                break
        self.counters.calls += 1
        return number

    def settle(self, number: int, *, timeout_s: float | None = None) -> None:
        """Return when every peer has posted call ``number`` and all calls so far agree. Raises UlyssesPeerError.

        ``timeout_s`` only where ranks may take longer than within a call.
        """
        words, posted = self._words, self._control.posted_word
        for peer in self._peers:
            if words[posted[peer]] < number:
                self._await_posted(peer, number, self._timeout_s if timeout_s is None else timeout_s)
        self.ensure_sound()
        self._futex.fence()
        for call in range(max(self._settled + 1, number - SIGNATURE_RING // 2), number + 1):
            self._compare(call)
        self._settled = max(self._settled, number)

    @property
    def num_unsettled(self) -> int:
        """Calls posted and not yet settled."""
        return self._number - self._settled

    def refuse(self, reason: str) -> None:
        """See Membership."""
        if not self._closed and not self._words[self._control.fault_word]:
            self._control.write_reason(self._rank, reason)
            self.post(REFUSED)
            self.counters.refusals += 1

    def check(self) -> None:
        """See Membership."""
        if self._closed:
            raise UlyssesClosedError(UlyssesErrorCode.CLOSED, "this communicator is closed")
        self.ensure_sound()
        self._blame_dead(self._number + 1)

    def abort(self, reason: str) -> None:
        """See Membership."""
        if not self._closed:
            self._record(UlyssesErrorCode.PEER_ABORTED, self._rank, f"rank {self._rank} gave up: {reason}")

    def report(self, code: UlyssesErrorCode, culprit: int, text: str) -> NoReturn:
        """Break the group over what was found elsewhere (by a device), unless it is broken already; raises the first fault."""
        self._break(code, culprit, text)

    def close(self) -> None:
        """See Membership."""
        if self._closed:
            return
        self._leave()
        for peer in self._peers:
            if not self._await_state(peer, RankState.CLOSING, self._timeout_s):
                logger.warning("ulysses.close_unmatched: rank %d left, rank %d did not", self._rank, peer)
                break
        self.release()

    def release(self) -> None:
        """Give up mapping and descriptors at once; peers that wait for this rank learn that it left."""
        if self._closed:
            return
        self._leave()
        self._closed = True
        self._watch.close()
        self._words.release()
        self._control.release()
        self._mapping.close()
        os.close(self._group.arena_fd)
        os.close(self._group.verdict_fd)

    def _await_posted(self, peer: int, number: int, timeout_s: float) -> None:
        words, posted, fault = self._words, self._control.posted_word[peer], self._control.fault_word
        began_ns = time.monotonic_ns()
        # Without yielding: on a busy machine a yield hands the core to other work for milliseconds, and the wait is shorter.
        while time.monotonic_ns() < began_ns + self._spin_ns:
            if words[posted] >= number:
                self._spin_ns = min(2 * self._spin_ns, _LONGEST_SPIN_NS)
                return
        self.counters.slept += 1
        waited_s = 0.0
        while (seen := words[posted]) < number:
            if words[fault]:
                self._raise_fault()
            if words[self._control.state_word[peer]] == RankState.CLOSING and words[posted] < number:
                self._break(UlyssesErrorCode.PEER_CLOSED, peer, f"rank {peer} closed while others still exchange")
            self._blame_dead(number)
            if waited_s >= timeout_s:
                self._blame_slowest(timeout_s)
            waited_s += self._sleep(posted, seen)
        # A sleeper costs the late rank a system call and itself the way back, so spin where the wait was short enough for
        # that; where it was not (a busy machine), spinning only takes time from whoever is awaited.
        if time.monotonic_ns() - began_ns < _LONGEST_SPIN_NS:
            self._spin_ns = min(2 * self._spin_ns, _LONGEST_SPIN_NS)
        else:
            self._spin_ns = max(self._spin_ns // 2, _SHORTEST_SPIN_NS)

    def _await_state(self, peer: int, state: RankState, timeout_s: float) -> bool:
        """Wait for the peer to reach the state; False if it won't: timeout, death, or (when leaving) a broken group."""
        word, waited_s = self._control.state_word[peer], 0.0
        while (seen := self._words[word]) < state:
            if self._words[self._control.fault_word]:
                if state is RankState.CLOSING:
                    return True  # nobody waits for anybody in a broken group
                self._raise_fault()
            if waited_s >= timeout_s or peer in self._watch.dead():
                return False
            waited_s += self._sleep(word, seen)
        return True

    def _sleep(self, word: int, seen: int) -> float:
        began = time.monotonic()
        asleep = self._control.asleep_word[self._rank]
        self._words[asleep] = 1
        self._futex.full_fence()
        self._futex.wait(word, seen, _SLICE_S)  # looks at the word once more before it sleeps
        self._words[asleep] = 0
        return min(time.monotonic() - began, 2 * _SLICE_S)

    def _enter(self, state: RankState) -> None:
        word = self._control.state_word[self._rank]
        self._futex.fence()
        self._words[word] = state
        self._futex.wake(word)

    def _leave(self) -> None:
        self._enter(RankState.CLOSING)
        self._futex.wake(self._control.posted_word[self._rank])

    def _compare(self, call: int) -> None:
        words, control, entry = self._words, self._control, call % SIGNATURE_RING
        own = words[control.signature_word[self._rank] + entry]
        for peer in self._peers:
            theirs = words[control.signature_word[peer] + entry]
            if theirs == own and words[control.posted_word[peer]] - call < SIGNATURE_RING:
                continue
            if theirs == REFUSED:
                reason = control.read_reason(peer)
                self._break(UlyssesErrorCode.PEER_REFUSED, peer, f"rank {peer} refused call {call}: {reason}")
            if own == REFUSED:
                reason = control.read_reason(self._rank)
                self._break(UlyssesErrorCode.PEER_REFUSED, self._rank, f"rank {self._rank} refused call {call}: {reason}")
            self._break(
                UlyssesErrorCode.PEER_DISAGREED,
                peer,
                f"rank {peer} and rank {self._rank} made different calls (call {call}): shapes, splits, dtype, tag and "
                "order must be the same on all ranks",
            )

    def _blame_dead(self, number: int) -> None:
        for peer in sorted(self._watch.dead()):
            if self._words[self._control.posted_word[peer]] >= number:
                continue
            if self._words[self._control.state_word[peer]] == RankState.CLOSING:
                self._break(UlyssesErrorCode.PEER_CLOSED, peer, f"rank {peer} closed and ended")
            self._break(UlyssesErrorCode.PEER_DIED, peer, f"the process of rank {peer} ended without closing")

    def _blame_slowest(self, timeout_s: float) -> NoReturn:
        peer = min(self._peers, key=lambda rank: (self._words[self._control.posted_word[rank]], rank))
        self._break(
            UlyssesErrorCode.PEER_TIMED_OUT,
            peer,
            f"rank {peer} did not arrive within {timeout_s:g} s ({self._watch.describe(peer)})",
        )

    def _break(self, code: UlyssesErrorCode, culprit: int, text: str) -> NoReturn:
        """Record the fault unless another rank was first, and raise what is recorded."""
        self._record(code, culprit, text)
        self._raise_fault()

    def _record(self, code: UlyssesErrorCode, culprit: int, text: str) -> None:
        fault = self._control.fault_word
        try:
            os.eventfd_read(self._group.verdict_fd)
        except BlockingIOError:
            self._await_record()
            if self._words[fault]:
                return
            # The first reporter ended before it finished its record; what this rank saw is true as well.
        self._control.write_fault(f"{code}\n{culprit}\n{text}")
        self._futex.fence()
        self._words[fault] = 1
        self._futex.wake(fault)
        for rank in range(self._group.num_ranks):
            self._futex.wake(self._control.posted_word[rank])
            self._futex.wake(self._control.state_word[rank])

    def _await_record(self) -> None:
        waited_s = 0.0
        while not self._words[self._control.fault_word] and waited_s < _RECORD_WAIT_S:
            waited_s += self._sleep(self._control.fault_word, 0)

    def _raise_fault(self) -> NoReturn:
        self._futex.fence()
        code, culprit, text = self._control.read_fault().split("\n", 2)
        raise UlyssesPeerError(UlyssesErrorCode(code), int(culprit), text)
