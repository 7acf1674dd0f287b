import assert from "node:assert/strict";
import { describe, test } from "node:test";
import { FakeClock } from "./fakes.js";
import { Presenter } from "./presenter.js";

const INTERVAL_MS = 50;

function rig(bound = 64): { clock: FakeClock; presenter: Presenter<{ chunk: number; seq: number }>; shown: [number, number][] } {
  const clock = new FakeClock();
  const startedAt = clock.now();
  const shown: [number, number][] = [];
  const presenter = new Presenter<{ chunk: number; seq: number }>(clock, INTERVAL_MS, bound, ({ seq }) => shown.push([seq, clock.now() - startedAt]));
  return { clock, presenter, shown };
}

describe("the presenter", () => {
  test("shows frames of single-frame chunks at once", () => {
    const { clock, presenter, shown } = rig();
    for (let seq = 1; seq <= 3; seq += 1) {
      presenter.push({ seq, chunk: seq });
      clock.advance(10);
    }
    assert.deepEqual(shown, [[1, 0], [2, 10], [3, 20]]);
  });

  test("spreads the frames of a chunk over media time, chunk after chunk", () => {
    const { clock, presenter, shown } = rig();
    for (let chunk = 0; chunk < 3; chunk += 1) {
      for (let frame = 1; frame <= 4; frame += 1) presenter.push({ seq: chunk * 4 + frame, chunk });
      clock.advance(4 * INTERVAL_MS);
    }
    assert.deepEqual(shown.map(([seq]) => seq), Array.from({ length: 12 }, (_, index) => index + 1));
    assert.deepEqual(shown.slice(0, 6).map(([, at]) => at), [0, 50, 100, 150, 200, 250]);
    assert.equal(presenter.numWaiting, 0);
  });

  test("catches up while more than a chunk waits", () => {
    const { clock, presenter, shown } = rig();
    for (let seq = 1; seq <= 12; seq += 1) presenter.push({ seq, chunk: Math.floor((seq - 1) / 4) });
    clock.advance(12 * INTERVAL_MS);
    assert.equal(shown.length, 12);
    const [, last] = shown.at(-1) ?? [0, 0];
    assert.ok(last < 11 * INTERVAL_MS && last > 8 * INTERVAL_MS);
  });

  test("shows the oldest early rather than holding more than its bound, and leaves none out", () => {
    const { clock, presenter, shown } = rig(2);
    for (let seq = 1; seq <= 8; seq += 1) presenter.push({ seq, chunk: 0 });
    assert.equal(presenter.numWaiting, 2);
    assert.deepEqual(shown.map(([seq]) => seq), [1, 2, 3, 4, 5, 6]);
    presenter.drain();
    assert.deepEqual(shown.map(([seq]) => seq), [1, 2, 3, 4, 5, 6, 7, 8]);
    clock.advance(1000);
    assert.equal(clock.numTimers, 0);
  });

  test("shows everything at once with no room to wait", () => {
    const { presenter, shown } = rig(0);
    for (let seq = 1; seq <= 4; seq += 1) presenter.push({ seq, chunk: 0 });
    assert.equal(shown.length, 4);
  });
});
