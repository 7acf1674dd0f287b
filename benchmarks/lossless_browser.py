"""Whether every frame of a long session arrives in Chromium, by each carrier at once: every decoded picture's number is read.

``python -m benchmarks.lossless_browser --seconds 600``
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
from pathlib import Path
from typing import Any

from playwright.async_api import Browser, async_playwright

from benchmarks.live import CHROMIUM, CHROMIUM_FLAGS, percentile, serving

PAGE = Path(__file__).parent / "read_all_barcodes.js"
CARRIERS = ("websocket", "datachannel")


async def play(browser: Browser, url: str, carrier: str, num_frames: int) -> dict[str, Any]:
    page = await browser.new_page()
    await page.goto(f"{url}/")
    wish = {"model": "synthetic", "pacing": "media", "maxFrames": num_frames, "carrier": carrier}
    seen = await page.evaluate(PAGE.read_text(), wish)
    numbers, outcome = seen["numbers"], seen["outcome"]
    return {
        "carried_by": seen["carriers"],
        "generated": outcome["lastSeq"],
        "decoded": len(numbers),
        "lost": sorted(set(range(1, outcome["lastSeq"] + 1)) - set(numbers))[:20],
        "in_order": numbers == sorted(set(numbers)) == seen["seqs"],
        "delivered": outcome["delivered"],
        "error": seen["error"],
        "generated_to_decoded_ms": {name: round(percentile(seen["decodedMs"], share)) for name, share in PERCENTILES},
    }


PERCENTILES = (("p50", 0.5), ("p95", 0.95), ("p99", 0.99), ("most", 1.0))


async def play_all(url: str, carriers: list[str], num_frames: int) -> dict[str, Any]:
    async with async_playwright() as tool:
        browser = await tool.chromium.launch(executable_path=CHROMIUM, args=CHROMIUM_FLAGS)
        figures = await asyncio.gather(*(play(browser, url, carrier, num_frames) for carrier in carriers))
        await browser.close()
    return dict(zip(carriers, figures, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.lossless_browser")
    parser.add_argument("--seconds", type=int, default=600)
    parser.add_argument("--width", type=int, default=832)
    parser.add_argument("--height", type=int, default=480)
    parser.add_argument("--fps", type=int, default=16)
    parser.add_argument("--carriers", nargs="+", choices=CARRIERS, default=list(CARRIERS))
    arguments = parser.parse_args()
    load = [os.getloadavg()[0]]
    with serving(arguments.width, arguments.height, arguments.fps, chunk_frames=1) as daemon:
        figures = asyncio.run(play_all(daemon.url, arguments.carriers, arguments.seconds * arguments.fps))
    load.append(os.getloadavg()[0])
    print(json.dumps({"load_before_and_after": load, **figures}, indent=2))


if __name__ == "__main__":
    main()
