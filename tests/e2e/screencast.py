"""Every picture that a page's compositor made: what a visitor saw, and for how short a moment."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from PIL import Image
from playwright.sync_api import Page


@contextmanager
def screencast(page: Page) -> Iterator[list[Image.Image]]:
    """The list is there when the block is left."""
    pictures: list[Image.Image] = []
    taken: list[tuple[float, bytes]] = []
    session = page.context.new_cdp_session(page)

    def keep(frame: dict[str, Any]) -> None:
        taken.append((frame["metadata"]["timestamp"], base64.b64decode(frame["data"])))
        session.send("Page.screencastFrameAck", {"sessionId": frame["sessionId"]})

    session.on("Page.screencastFrame", keep)
    session.send("Page.startScreencast", {"format": "jpeg", "quality": 90, "everyNthFrame": 1})
    try:
        yield pictures
    finally:
        session.send("Page.stopScreencast")
        session.detach()
    # They are encoded beside each other, so that one may overtake another.
    pictures += [Image.open(io.BytesIO(data)) for _, data in sorted(taken)]
