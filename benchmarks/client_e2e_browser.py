"""The same figures inside Chromium: the daemon's own client library, a canvas, a worker that decodes."""

from __future__ import annotations

from typing import Any

from playwright.sync_api import sync_playwright

CHROMIUM = "/usr/bin/chromium"
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
MEASURE = """
async ({ model, seconds }) => {
  const { Client } = await import("/js/index.js");
  const now = () => performance.timeOrigin + performance.now();
  const canvas = document.body.appendChild(document.createElement("canvas"));
  const frames = [];
  const keyMs = [];
  const sentAt = new Map();
  let random = 7;
  let isDown = false;

  // Down and up at moments that keep no step with the frames.
  const press = (session) => {
    random = (random * 1103515245 + 12345) % 2 ** 31;
    return setTimeout(() => {
      const at = now();
      sentAt.set(session.control(isDown ? { released: ["KeyW"] } : { pressed: ["KeyW"] }), at);
      isDown = !isDown;
      timer = press(session);
    }, 200 + 300 * (random / 2 ** 31));
  };

  let timer = 0;
  const createdAt = now();
  return await new Promise((resolve, reject) => {
    let session;
    const events = {
      connected: () => { timer = press(session); },
      frame: (frame) => {
        frames.push(frame);
        for (const [id, at] of sentAt) {
          if (id <= frame.controlId) {
            keyMs.push(frame.decodedAt - at);
            sentAt.delete(id);
          }
        }
        if (timer !== 0 && now() - createdAt > seconds * 1000) {
          clearTimeout(timer);
          timer = 0;
          session.end();
        }
      },
      ended: (outcome, error) => error === null ? resolve({
        first_frame_ms: frames[0].decodedAt - createdAt,
        shown_at_ms: frames.map(({ shownAt }) => shownAt - createdAt),
        picture_ms: frames.map(({ ageMs, receivedAt, decodedAt }) => ageMs + decodedAt - receivedAt),
        key_ms: keyMs,
        delivered: outcome.delivered,
      }) : reject(new Error(error.message)),
    };
    new Client(location.href).createSession({ model, seed: 7, canvas, events }).then((opened) => { session = opened; }, reject);
  });
}
"""


def measure_browser(url: str, model: str, seconds: float) -> dict[str, Any]:
    """The fields of ``Measured``, save its names."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        try:
            page = browser.new_page()
            page.goto(url)
            seen = page.evaluate(MEASURE, {"model": model, "seconds": seconds})
        finally:
            browser.close()
    shown_at_ms = seen.pop("shown_at_ms")
    steady_ms = [at_ms for at_ms in shown_at_ms if at_ms > shown_at_ms[0] + 1000]
    fps = 1000 * (len(steady_ms) - 1) / (steady_ms[-1] - steady_ms[0]) if len(steady_ms) > 1 else 0.0
    return {**seen, "fps": fps, "frames": len(shown_at_ms)}
