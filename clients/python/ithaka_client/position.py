"""Where this client stands in a stream, across all its connections. Pure: frames and hellos in, acknowledgements out."""

from __future__ import annotations

from ithaka_client.errors import ProtocolError, ResumeRefusedError
from ithaka_client.protocol import EncodedFrame, EndOfStream, Hello


class StreamPosition:
    """Counts what was received and decoded, and holds every connection to the order that the protocol promises.

    On one connection: the first frame is a key frame at or before the resumed one, each further seq is one more than the
    last, and what lies before the resumed one is marked as decode only.
    """

    def __init__(self) -> None:
        self.stream: str | None = None
        self.received_through = 0
        self.decoded_through = 0
        self.decoded_count = 0
        self.end: EndOfStream | None = None
        self._resumed_seq = 1
        self._expected_seq: int | None = None

    def begin(self, hello: Hello) -> int:
        """A connection says hello; returns the ``next_seq`` to resume from. Raises ResumeRefusedError for another stream."""
        if self.stream is not None and hello.stream != self.stream:
            raise ResumeRefusedError(
                "resume_refused", f"The session now carries stream {hello.stream}, this client watched {self.stream}."
            )
        self.stream = hello.stream
        self._resumed_seq = self.decoded_through + 1
        self._expected_seq = None
        return self._resumed_seq

    def receive(self, frame: EncodedFrame) -> None:
        """Raises ProtocolError when the frame is out of order."""
        if self._expected_seq is None:
            if frame.seq > self._resumed_seq:
                raise ProtocolError(f"frames {self._resumed_seq} to {frame.seq - 1} are missing after a resume")
            if not frame.is_key:
                raise ProtocolError(f"the first frame of a connection, {frame.seq}, is no key frame")
        elif frame.seq != self._expected_seq:
            raise ProtocolError(f"frame {frame.seq} came where {self._expected_seq} was expected")
        if frame.is_decode_only != (frame.seq < self._resumed_seq):
            raise ProtocolError(f"frame {frame.seq} is wrongly marked; the stream was resumed at {self._resumed_seq}")
        if self.end is not None and frame.seq > self.end.last_seq:
            raise ProtocolError(f"frame {frame.seq} came after the stream ended at {self.end.last_seq}")
        self._expected_seq = frame.seq + 1
        self.received_through = max(self.received_through, frame.seq)

    def decode(self, seq: int) -> bool:
        """Frame ``seq`` was decoded. Returns whether it is to be shown: each one is, exactly once."""
        if seq <= self.decoded_through:
            return False
        if seq != self.decoded_through + 1:
            raise ProtocolError(f"frame {seq} was decoded after {self.decoded_through}")
        self.decoded_through = seq
        self.decoded_count += 1
        return True

    def finish(self, end: EndOfStream) -> None:
        """The server names the last frame. Raises ProtocolError when that contradicts what came."""
        if end.last_seq < self.received_through:
            raise ProtocolError(f"the stream ended at {end.last_seq}, but frame {self.received_through} was received")
        if self.end is not None and self.end.last_seq != end.last_seq:
            raise ProtocolError(f"the stream ended at {self.end.last_seq} and again at {end.last_seq}")
        expected = self._resumed_seq if self._expected_seq is None else self._expected_seq
        if expected <= end.last_seq:
            raise ProtocolError(f"the stream ended at {end.last_seq}, but frame {expected} never came")
        self.end = end

    @property
    def is_complete(self) -> bool:
        """Every frame of a stream that ended has been decoded."""
        return self.end is not None and self.decoded_through == self.end.last_seq


class LivePosition(StreamPosition):
    """In a live stream frames may be missing; none comes twice or out of order."""

    _hidden_through = 0

    def receive(self, frame: EncodedFrame) -> None:
        if self._expected_seq is None and not frame.is_key:
            raise ProtocolError(f"the first frame of a connection, {frame.seq}, is no key frame")
        # Whoever comes back to a picture that stands gets its group of pictures again; decode passes over what it knows.
        least = 1 if self._expected_seq is None else self._expected_seq
        if frame.seq < least:
            raise ProtocolError(f"frame {frame.seq} came where {least} or a later one was expected")
        if self.end is not None:
            raise ProtocolError(f"frame {frame.seq} came after the stream ended at {self.end.last_seq}")
        self._expected_seq = frame.seq + 1
        self.received_through = max(self.received_through, frame.seq)
        if frame.is_decode_only:
            self._hidden_through = frame.seq

    def decode(self, seq: int) -> bool:
        if seq <= self.decoded_through:
            return False
        self.decoded_through = seq
        if seq <= self._hidden_through:
            return False
        self.decoded_count += 1
        return True

    def finish(self, end: EndOfStream) -> None:
        if end.last_seq < self.received_through:
            raise ProtocolError(f"the stream ended at {end.last_seq}, but frame {self.received_through} was received")
        self.end = end

    @property
    def is_complete(self) -> bool:
        """Every frame that came has been decoded."""
        return self.end is not None and self.decoded_through == self.received_through
