import assert from "node:assert/strict";
import { describe, test } from "node:test";
import { FakeClock } from "./fakes.js";
import { SilenceWatch } from "./silence.js";

class Rig {
  readonly clock = new FakeClock();
  count = 5;
  numAsked = 0;
  numSilent = 0;
  /** What an asked server sends. */
  answer = 0;
  readonly watch = new SilenceWatch({
    clock: this.clock,
    longestMs: 2_000,
    readCount: async () => this.count,
    ask: () => {
      this.numAsked += 1;
      this.count += this.answer;
    },
    onSilent: () => (this.numSilent += 1),
  });

  /** In steps of as much as a timer may be late. */
  async pass(ms: number, stepMs = 250): Promise<void> {
    for (let i = 0; i < ms; i += stepMs) {
      this.clock.advance(stepMs);
      await Promise.resolve();
      await Promise.resolve();
    }
  }
}

describe("a watch for silence", () => {
  test("asks, and tells once, when nothing came for long enough", async () => {
    const rig = new Rig();
    rig.watch.start();
    await rig.pass(1_500);
    rig.count += 1;
    await rig.pass(2_000);
    assert.equal(rig.numSilent, 0);
    await rig.pass(10_000);
    assert.deepEqual([rig.numSilent, rig.clock.numTimers], [1, 0]);
    assert.ok(rig.numAsked > 4);
  });

  test("asks nothing while something comes", async () => {
    const rig = new Rig();
    rig.watch.start();
    for (let i = 0; i < 40; i += 1) {
      rig.count += 1;
      await rig.pass(250);
    }
    assert.deepEqual([rig.numAsked, rig.numSilent], [0, 0]);
  });

  test("leaves a server alone that has nothing to say and answers", async () => {
    const rig = new Rig();
    rig.answer = 1;
    rig.watch.start();
    await rig.pass(60_000);
    assert.equal(rig.numSilent, 0);
    assert.ok(rig.numAsked >= 60);
  });

  test("takes a page that stood still for no silence of the server", async () => {
    const rig = new Rig();
    rig.watch.start();
    await rig.pass(250);
    await rig.pass(60_000, 60_000);
    assert.equal(rig.numSilent, 0);
    rig.count += 40;
    await rig.pass(1_750);
    assert.equal(rig.numSilent, 0);
  });

  test("tells nothing where nobody counts", async () => {
    const rig = new Rig();
    rig.count = 0;
    rig.watch.start();
    await rig.pass(60_000);
    assert.deepEqual([rig.numAsked, rig.numSilent], [0, 0]);
  });

  test("tells nothing after it was stopped", async () => {
    const rig = new Rig();
    rig.watch.start();
    await rig.pass(1_750);
    rig.watch.stop();
    await rig.pass(5_000);
    assert.deepEqual([rig.numSilent, rig.clock.numTimers], [0, 0]);
  });
});
