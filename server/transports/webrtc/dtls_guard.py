"""Takes every record of a datagram (RFC 6347, 4.1.1). aiortc takes one, and the others would lie in its buffer for ever."""

from __future__ import annotations

from aiortc import RTCDtlsTransport
from OpenSSL import SSL

RECORD_BYTES = 1500
"""Taken at once, as aiortc does."""
NAMES = ("_data_receiver", "_recv_next", "_ssl", "_write_ssl")
"""Of aiortc's own, that are used here."""


class DtlsGuard:
    """One for each transport, before it starts."""

    def __init__(self, dtls: RTCDtlsTransport) -> None:
        self._dtls = dtls
        self._take_first = dtls._recv_next
        dtls._recv_next = self._recv_next  # type: ignore[method-assign]

    async def _recv_next(self) -> None:
        """Raises ConnectionError where the peer has said goodbye."""
        await self._take_first()
        while self._dtls.encrypted:
            record = self._next_record()
            if record is None:
                return
            if self._dtls._data_receiver is not None:
                await self._dtls._data_receiver._handle_data(record)
            await self._dtls._write_ssl()

    def _next_record(self) -> bytes | None:
        """Raises ConnectionError."""
        connection = self._dtls._ssl
        assert connection is not None
        try:
            return connection.recv(RECORD_BYTES)
        except SSL.ZeroReturnError:
            raise ConnectionError("the peer has closed DTLS") from None
        except SSL.Error:
            return None


def missing_names() -> list[str]:
    """Of aiortc's private ones, what this version lacks."""
    present = {*vars(RTCDtlsTransport), *RTCDtlsTransport.__init__.__code__.co_names}
    return [name for name in NAMES if name not in present]
