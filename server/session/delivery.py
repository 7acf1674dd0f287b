"""What was sent, what came back, and whether everything arrived.

Counts frames of one stream. No clock, no I/O. A client's wrong word is a ProtocolViolation and changes nothing.
"""

from __future__ import annotations

from ithaka.server.errors import ProtocolViolation
from ithaka.server.session.events import FinVerdict


class Delivery:
    """``window``: frames that may lie beyond ``decoded_through``. All seqs count from 1; 0 means none yet."""

    def __init__(self, stream: str, window: int) -> None:
        self.stream = stream
        self.window = window
        self.generated_through = 0
        self.sent_through = 0
        self.received_through = 0
        self.decoded_through = 0
        self.last_seq: int | None = None
        """The stream's last frame, once that is known."""
        self.eos_was_sent = False

    @property
    def window_through(self) -> int:
        """The last frame that may be generated and sent now."""
        return self.decoded_through + self.window

    @property
    def owes_ack(self) -> bool:
        """Whether a frame was sent that the client has not acknowledged as decoded."""
        return self.decoded_through < self.sent_through

    def generated(self, seq: int) -> None:
        self.generated_through = seq

    def sent(self, seq: int) -> None:
        self.sent_through = max(self.sent_through, seq)

    def ended(self, last_seq: int) -> None:
        self.last_seq = last_seq

    def acknowledge(self, received_through: int, decoded_through: int) -> bool:
        """Take a cumulative acknowledgement; True when ``decoded_through`` grew."""
        if decoded_through > received_through:
            raise ProtocolViolation(
                "ack_invalid", f"decoded_through {decoded_through} is larger than received_through {received_through}"
            )
        if received_through > self.sent_through:
            raise ProtocolViolation(
                "ack_beyond_sent", f"received_through {received_through}, but only {self.sent_through} frames were sent"
            )
        if received_through < self.received_through or decoded_through < self.decoded_through:
            raise ProtocolViolation(
                "ack_shrunk",
                f"acknowledged ({received_through}, {decoded_through}) after ({self.received_through}, {self.decoded_through})",
            )
        grew = decoded_through > self.decoded_through
        self.received_through, self.decoded_through = received_through, decoded_through
        return grew

    def resume(self, stream: str, next_seq: int, *, is_kept: bool) -> None:
        """Take up the stream at ``next_seq``: all before it is decoded.

        ``is_kept``: the frames that a fresh decoder needs for it are there. What was received and not decoded is sent
        again, so the count of received frames starts over from there.
        """
        if stream != self.stream:
            raise ProtocolViolation("resume_foreign", f"this session's stream is {self.stream!r}, not {stream!r}")
        if next_seq <= self.decoded_through:
            raise ProtocolViolation(
                "resume_stale",
                f"frames through {self.decoded_through} are acknowledged; resume from {self.decoded_through + 1}",
            )
        if next_seq > self.sent_through + 1:
            raise ProtocolViolation(
                "resume_ahead", f"only {self.sent_through} frames were sent, so nobody can go on from {next_seq}"
            )
        if not is_kept:
            raise ProtocolViolation("resume_gone", f"the frames a decoder needs to show frame {next_seq} are no longer kept")
        self.received_through = self.decoded_through = next_seq - 1

    def eos_sent(self) -> None:
        self.eos_was_sent = True

    def finish(self, decoded_count: int, last_seq: int) -> FinVerdict:
        """Compare the client's count with ours. Its own acknowledgements have to agree with it."""
        if not self.eos_was_sent:
            return FinVerdict.EARLY
        if (decoded_count, last_seq, self.decoded_through) == (self.last_seq, self.last_seq, self.last_seq):
            return FinVerdict.MATCH
        return FinVerdict.MISMATCH
