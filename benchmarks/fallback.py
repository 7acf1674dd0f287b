"""How long a page stands still when the network of its WebRTC is cut: until the WebSocket's first picture, in Chromium.

``python -m benchmarks.fallback --rounds 5 --cut "from the page"``
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any, get_args

from playwright.sync_api import Page, sync_playwright

from benchmarks.cuttable_network import CutWay, cuttable_network
from benchmarks.live import CHROMIUM, CHROMIUM_FLAGS, serving

FPS = 16
PICTURES_BEFORE = 32
BEGIN = """
async ({ isLive, picturesBefore }) => {
  const { Client } = await import("/js/index.js");
  const now = () => performance.timeOrigin + performance.now();
  const video = Object.assign(document.createElement("video"), { muted: true });
  const canvas = document.createElement("canvas");
  document.body.replaceChildren(video, canvas);
  const seen = { leftAt: 0, why: "", shownAt: 0 };
  let pictures = 0;
  await new Promise((begun, reject) => {
    const count = () => (pictures += 1) === picturesBefore && begun();
    const watch = () => video.requestVideoFrameCallback(() => (count(), watch()));
    watch();
    window.wentOver = new Promise((resolve) => {
      const events = {
        carrier: (carrier, why) => carrier === "websocket" && Object.assign(seen, { leftAt: now(), why }),
        frame: ({ shownAt }) => {
          if (seen.leftAt === 0) count();
          else if (seen.shownAt === 0) resolve(Object.assign(seen, { shownAt }));
        },
      };
      const client = new Client(location.href);
      const wish = { model: "synthetic", canvas, events };
      const made = isLive
        ? client.createLiveSession({ ...wish, video })
        : client.createSession({ ...wish, carrier: "datachannel" });
      made.then((session) => {
        window.leave = () => (session.close(), client.deleteSession(session.info.id, { force: true }));
      }, reject);
    });
  });
}
"""


def fall_back(page: Page, url: str, *, is_live: bool, way: CutWay) -> dict[str, Any]:
    """Milliseconds from the cut."""
    with cuttable_network(page) as network:
        page.goto(url)
        page.evaluate(BEGIN, {"isLive": is_live, "picturesBefore": PICTURES_BEFORE})
        cut_at = time.time() * 1000
        network.cut(way)
        seen = page.evaluate("window.wentOver")
        page.evaluate("window.leave()")
    page.close()
    return {"left_ms": round(seen["leftAt"] - cut_at), "shown_ms": round(seen["shownAt"] - cut_at), "why": seen["why"]}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fallback")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cut", choices=get_args(CutWay), default="both ways")
    arguments = parser.parse_args()
    with serving(832, 480, FPS, chunk_frames=1) as daemon, sync_playwright() as tool:
        browser = tool.chromium.launch(executable_path=CHROMIUM, args=CHROMIUM_FLAGS)
        figures = {
            name: [
                fall_back(browser.new_page(), daemon.url, is_live=is_live, way=arguments.cut) for _ in range(arguments.rounds)
            ]
            for name, is_live in (("live, track", True), ("lossless, data channel", False))
        }
        browser.close()
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
