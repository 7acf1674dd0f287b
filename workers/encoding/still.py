"""The newest picture, kept for who comes when no other follows it."""

from __future__ import annotations

from ithaka.workers.contract import FrameHeader


class Still:
    """Of one session, on its thread. ``header`` is None until there was a picture."""

    def __init__(self) -> None:
        self.header: FrameHeader | None = None
        self._i420 = bytearray()

    @property
    def i420(self) -> memoryview:
        return memoryview(self._i420)

    def keep(self, header: FrameHeader, i420: memoryview) -> None:
        """A copy: the slot goes back. Sizes are the session's, so that the memory is taken once."""
        if not self._i420:
            self._i420 = bytearray(len(i420))
        memoryview(self._i420)[:] = i420
        self.header = header
