"""A page that nobody sees keeps its promises."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.background_tab import background_tab
from tests.e2e.browser import WHEN_NUMBER_ABOVE
from tests.e2e.running_daemon import RunningDaemon

pytestmark = pytest.mark.browser
WHEN_STARTABLE = """
new Promise((resolve) => {
  const start = document.getElementById("start");
  const look = () => !start.disabled && resolve();
  new MutationObserver(look).observe(start, { attributes: true });
  look();
})
"""
WHEN_JUDGED = """
new Promise((resolve) => {
  const verdict = document.getElementById("verdict");
  const look = () => !verdict.hidden && resolve(verdict.textContent);
  new MutationObserver(look).observe(verdict, { attributes: true });
  look();
})
"""


@pytest.mark.parametrize(("frames", "carrier"), [("lossless", "WebSocket"), ("lossless-datachannel", "Data channel")])
async def test_a_tab_in_the_background_still_acknowledges(
    daemon: RunningDaemon, tmp_path: Path, frames: str, carrier: str
) -> None:
    async with background_tab(tmp_path) as tab:
        await tab.open(daemon.url)
        await tab.evaluate(WHEN_STARTABLE)
        await tab.evaluate(f"document.getElementById('delivery').value = '{frames}'")
        await tab.evaluate("document.getElementById('start').click()")
        await tab.evaluate(f"({WHEN_NUMBER_ABOVE})(['shown', 10])")
        await tab.hide()
        assert await tab.evaluate("document.visibilityState") == "hidden"
        before = await tab.evaluate("Number(document.getElementById('shown').textContent)")
        await tab.evaluate(f"({WHEN_NUMBER_ABOVE})(['shown', {before + 60}])")
        assert await tab.evaluate("document.visibilityState") == "hidden"
        assert await tab.evaluate("document.getElementById('carrier').textContent") == carrier
        await tab.evaluate("document.getElementById('start').click()")
        verdict = await tab.evaluate(WHEN_JUDGED)
        assert verdict.startswith("Delivered: all ")
