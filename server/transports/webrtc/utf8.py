"""Whether bytes of a peer's are text."""

from __future__ import annotations


def is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True
