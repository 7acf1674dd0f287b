"""Chromium for the tests of the page, and what they all do with it."""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageOps
from playwright.sync_api import Browser, ConsoleMessage, Page, expect, sync_playwright

from ithaka.workers.families.synthetic.barcode import Barcode, read

CHROMIUM = "/usr/bin/chromium"
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--autoplay-policy=no-user-gesture-required",
]
DEADLINE_MS = 20_000
WHEN_NUMBER_ABOVE = """
([id, above]) => new Promise((resolve) => {
  const element = document.getElementById(id);
  const look = () => Number(element.textContent.replaceAll(",", "")) > above && resolve();
  new MutationObserver(look).observe(element, { childList: true, characterData: true, subtree: true });
  look();
})
"""


@contextlib.contextmanager
def running_chromium(*more: str) -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=[*ARGUMENTS, *more])
        try:
            yield browser
        finally:
            browser.close()


def barcode_in(picture: Image.Image, width: int, height: int) -> Barcode | None:
    """What a session's picture says, at whatever size it was taken."""
    luma = picture.convert("L").resize((width, height), Image.Resampling.NEAREST)
    return read(np.asarray(ImageOps.autocontrast(luma)))


class WatchedPage:
    """A page whose errors are a test's failure, unless the test foresees them."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.complaints: list[str] = []
        page.set_default_timeout(DEADLINE_MS)
        page.on("console", self._note)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))

    def _note(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)

    def forgive_outages(self) -> None:
        """The browser itself reports each attempt that found nobody."""
        self.complaints = [text for text in self.complaints if "net::ERR_" not in text and "WebSocket" not in text]

    def forgive_refusals(self) -> None:
        """As above, of each answer that is no success."""
        self.complaints = [text for text in self.complaints if "the server responded with a status of 4" not in text]

    def open(self, url: str) -> None:
        self.page.goto(url)

    def start(self, model: str, seed: int = 7) -> None:
        self.page.get_by_role("combobox", name="World").select_option(model)
        self.page.get_by_role("spinbutton", name="Seed").fill(str(seed))
        self.page.get_by_role("button", name="Start").click()
        expect(self.page.locator("#phase")).to_have_text("Streaming", timeout=DEADLINE_MS)

    def stop(self) -> str:
        """The verdict in words. By keyboard: where the pointer is locked, a click would not reach the button."""
        self.page.get_by_role("button", name="Stop").press("Enter")
        verdict = self.page.locator("#verdict")
        expect(verdict).to_be_visible(timeout=DEADLINE_MS)
        return verdict.inner_text()

    def await_number(self, element_id: str, above: int) -> None:
        self.page.evaluate(WHEN_NUMBER_ABOVE, [element_id, above])

    def number(self, element_id: str) -> int:
        return int(re.sub(r"\D", "", self.page.locator(f"#{element_id}").inner_text()))

    def barcode(self, width: int, height: int, *, shown_in: str = "canvas") -> Barcode:
        """What the picture on the screen says; one that is dimmed is stretched to full contrast."""
        for _ in range(5):  # one that was taken between two layouts of the page can't be read
            picture = Image.open(io.BytesIO(self.page.locator(shown_in).screenshot()))
            barcode = barcode_in(picture, width, height)
            if barcode is not None:
                return barcode
        raise AssertionError("no barcode is shown")

    def evaluate(self, script: str, argument: Any = None) -> Any:
        return self.page.evaluate(script, argument)

    def screenshot(self, path: Path) -> None:
        self.page.screenshot(path=path)
