import assert from "node:assert/strict";
import { describe, test } from "node:test";
import type { FrameShown, Outcome } from "../index.js";
import { ApiError } from "../index.js";
import { Stats } from "./stats.js";
import { explain, judge, phaseWords, tell } from "./words.js";

function frame(seq: number, shownAt: number, controlId = 0): FrameShown {
  return {
    seq,
    pts: seq - 1,
    controlId,
    chunk: seq - 1,
    ageMs: 0,
    receivedAt: shownAt,
    decodedAt: shownAt,
    shownAt,
    receivedThrough: seq + 2,
    decodedThrough: seq,
    picture: null,
  };
}

describe("figures", () => {
  test("of nothing are empty", () => {
    assert.deepEqual(new Stats().figures(0), { fps: null, latencyMs: null, medianLatencyMs: null, shown: 0, received: 0, decoded: 0 });
  });

  test("count frames and their rate of late", () => {
    const stats = new Stats();
    for (let seq = 1; seq <= 100; seq += 1) stats.showFrame(frame(seq, seq * 50));
    const figures = stats.figures(5_000);
    assert.equal(Math.round(figures.fps ?? 0), 20);
    assert.deepEqual([figures.shown, figures.received, figures.decoded], [100, 102, 100]);
    assert.equal(stats.figures(60_000).fps, null);
  });

  test("take the time from a control to the first picture that used it", () => {
    const stats = new Stats();
    stats.sendControl(1, 100);
    stats.sendControl(2, 130);
    stats.sendControl(3, 140);
    stats.showFrame(frame(1, 150, 0));
    stats.showFrame(frame(2, 200, 2));
    assert.equal(stats.figures(200).latencyMs, 70);
    stats.showFrame(frame(3, 250, 2));
    assert.equal(stats.figures(250).latencyMs, 70);
    stats.showFrame(frame(4, 300, 3));
    assert.deepEqual([stats.figures(300).latencyMs, stats.figures(300).medianLatencyMs], [160, 100]);
  });
});

describe("figures of a track", () => {
  test("count pictures, and know controls where they are told", () => {
    const stats = new Stats();
    stats.sendControl(1, 100);
    stats.showPicture(3, 150, 0);
    assert.deepEqual([stats.figures(150).shown, stats.figures(150).latencyMs], [3, null]);
    stats.showPicture(4, 200, 1);
    assert.deepEqual([stats.figures(200).fps, stats.figures(200).latencyMs], [20, 100]);
  });

  test("are told without a promise", () => {
    assert.equal(tell(1, true).text, "You saw 1 picture.");
    assert.equal(tell(20, false).text, "Live: 20 pictures shown, each the newest there was.");
  });
});

describe("words", () => {
  test("say what to do", () => {
    const full = new ApiError("queue_full", "Every place is taken.", true, 429, null, 7);
    assert.equal(explain(full), "Every place is taken. Try again in 7 s.");
    const lost = explain({ code: "worker_lost", message: "It ended.", retryable: true });
    assert.equal(lost, "The model's workers were lost; they come back by themselves. It ended. Press Start to try again.");
    assert.equal(explain({ code: "internal", message: "Broken.", retryable: false }), "Broken.");
  });

  test("give the verdict", () => {
    const outcome: Outcome = { delivered: true, state: "closed", reason: "ended", lastSeq: 9, decodedCount: 9 };
    assert.match(judge(outcome).text, /^Delivered: all 9 frames/);
    assert.match(judge({ ...outcome, delivered: false, decodedCount: 1 }).text, /^Not delivered: 1 frame /);
    assert.equal(judge({ ...outcome, delivered: null }).isDelivered, false);
  });

  test("name the connection's state", () => {
    assert.equal(phaseWords("connected", "paused", null), "Paused");
    assert.equal(phaseWords("connecting", "queued", 3), "Waiting in line, place 3");
    assert.equal(phaseWords("reconnecting", "streaming", null), "Connection lost, trying again");
  });
});
