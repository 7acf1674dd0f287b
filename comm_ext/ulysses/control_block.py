"""The shared words that ranks of a group meet by: layout and access, no policy.

    page 0                 fault word, number of ranks, then the fault record (code, culprit, words)
    one line per rank      posted count, state (absent, joined, closing), whether it sleeps
    one row per rank       the signatures of its last calls, a ring by call number
    two texts per rank     its card, written once when it joins; why it refused a call, last one
    ...                    windows follow at ``control_bytes``

Each word has one writer, but for the fault record, whose writer holds the group's only verdict token. Words are 8 bytes,
aligned, little-endian; a count is written after the bytes that it announces (``Fence`` keeps that order on any CPU).
"""

from __future__ import annotations

from enum import IntEnum

PAGE_BYTES = 4096
LINE_BYTES = 64
WORD_BYTES = 8
MAX_RANKS = 64
NUM_RANKS_WORD = 1
SIGNATURE_RING = 64
TEXT_BYTES = 1024
_FAULT_TEXT_OFFSET = 64


class RankState(IntEnum):
    """Where a rank is in the communicator's life."""

    ABSENT = 0
    JOINED = 1
    CLOSING = 2


def control_bytes(num_ranks: int) -> int:
    """Bytes before the first window, whole pages."""
    per_rank = LINE_BYTES + SIGNATURE_RING * WORD_BYTES + 2 * TEXT_BYTES
    return PAGE_BYTES + -(-num_ranks * per_rank // PAGE_BYTES) * PAGE_BYTES


class ControlBlock:
    """Typed access to the control words in ``memory`` (a writable view of the whole arena)."""

    def __init__(self, memory: memoryview, num_ranks: int) -> None:
        self._bytes = memory[: control_bytes(num_ranks)]
        self.words = self._bytes.cast("Q")
        """All words; the hot paths index it with the ``*_word`` numbers below."""
        self.fault_word = 0
        lines = PAGE_BYTES // WORD_BYTES
        rows = lines + num_ranks * LINE_BYTES // WORD_BYTES
        self.posted_word = tuple(lines + rank * LINE_BYTES // WORD_BYTES for rank in range(num_ranks))
        self.state_word = tuple(word + 1 for word in self.posted_word)
        self.asleep_word = tuple(word + 2 for word in self.posted_word)
        self.signature_word = tuple(rows + rank * SIGNATURE_RING for rank in range(num_ranks))
        self._texts = (rows + num_ranks * SIGNATURE_RING) * WORD_BYTES

    def write_card(self, rank: int, text: str) -> None:
        """What ``rank`` is, cut to what fits; written once, because others may read it at any time from then on."""
        self._write_text(self._texts + 2 * rank * TEXT_BYTES, text)

    def read_card(self, rank: int) -> str:
        """The card of ``rank``."""
        return self._read_text(self._texts + 2 * rank * TEXT_BYTES)

    def write_reason(self, rank: int, text: str) -> None:
        """Why ``rank`` refuses the call that it is about to post."""
        self._write_text(self._texts + (2 * rank + 1) * TEXT_BYTES, text)

    def read_reason(self, rank: int) -> str:
        """Why ``rank`` refused its last refused call."""
        return self._read_text(self._texts + (2 * rank + 1) * TEXT_BYTES)

    def write_fault(self, text: str) -> None:
        """Write the fault record; the fault word, set afterwards, makes it valid."""
        self._write_text(_FAULT_TEXT_OFFSET, text)

    def read_fault(self) -> str:
        """The fault record, valid once the fault word is set."""
        return self._read_text(_FAULT_TEXT_OFFSET)

    def release(self) -> None:
        """Let go of the memory, so that its mapping can close."""
        self.words.release()
        self._bytes.release()

    def _write_text(self, offset: int, text: str) -> None:
        data = text.encode()[: TEXT_BYTES - WORD_BYTES]
        self._bytes[offset + WORD_BYTES : offset + WORD_BYTES + len(data)] = data
        self._bytes[offset : offset + WORD_BYTES] = len(data).to_bytes(WORD_BYTES, "little")

    def _read_text(self, offset: int) -> str:
        length = min(int.from_bytes(self._bytes[offset : offset + WORD_BYTES], "little"), TEXT_BYTES - WORD_BYTES)
        return bytes(self._bytes[offset + WORD_BYTES : offset + WORD_BYTES + length]).decode(errors="replace")
