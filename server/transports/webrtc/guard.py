"""Whether aiortc has the parts before which the guards stand."""

from __future__ import annotations

from ithaka.server.transports.webrtc import dtls_guard, rtcp_guard, sctp_guard


class AiortcError(Exception):
    """This aiortc is another one; the message says what to install."""


def check_aiortc() -> None:
    """Raises AiortcError."""
    missing = [*dtls_guard.missing_names(), *sctp_guard.missing_names(), *rtcp_guard.missing_names()]
    if missing:
        raise AiortcError(
            f"this aiortc is none that the server knows: {', '.join(missing)}; install the version of requirements.lock"
        )
