import assert from "node:assert/strict";
import { describe, test } from "node:test";
import { FakeClock } from "./fakes.js";
import { SilenceWatch } from "./silence.js";

class Rig {
  readonly clock = new FakeClock();
  count = 5;
  questions = 0;
  answers = 0;
  numAsked = 0;
  numSilent = 0;
  numUnheard = 0;
  /** What an asked server sends. */
  answer = 0;
  readonly watch = new SilenceWatch({
    clock: this.clock,
    longestMs: 2_000,
    readCounts: async () => ({ received: this.count, questions: this.questions, answers: this.answers }),
    ask: () => {
      this.numAsked += 1;
      this.count += this.answer;
      this.lastAskAt = this.clock.now();
    },
    onSilent: () => (this.numSilent += 1),
    onUnheard: () => (this.numUnheard += 1),
  });
  private lastAskAt = Number.NEGATIVE_INFINITY;

  /** In steps of as much as a timer may be late. */
  async pass(ms: number, stepMs = 250): Promise<void> {
    for (let i = 0; i < ms; i += stepMs) {
      this.clock.advance(stepMs);
      await Promise.resolve();
      await Promise.resolve();
    }
  }

  /** As `pass`; pictures come all the time, and each half second the server asks if it has heard nothing since its last look. */
  async passWithServer(ms: number, { isHeard = true, stepMs = 250 } = {}): Promise<void> {
    let sinceLook = 0;
    for (let passed = 0; passed < ms; passed += stepMs) {
      this.count += 1;
      sinceLook += stepMs;
      if (sinceLook >= 500) {
        const wasHeard = isHeard && this.clock.now() - this.lastAskAt < 500;
        if (!wasHeard) this.questions += Math.floor(sinceLook / 500);
        sinceLook %= 500;
      }
      await this.pass(stepMs, stepMs);
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

describe("a watch for what gets to the other side", () => {
  test("tells once when the other side goes on asking, though it was told", async () => {
    const rig = new Rig();
    rig.watch.start();
    await rig.passWithServer(1_500, { isHeard: false });
    assert.deepEqual([rig.numUnheard, rig.numSilent], [0, 0]);
    await rig.passWithServer(10_000, { isHeard: false });
    assert.deepEqual([rig.numUnheard, rig.numSilent, rig.clock.numTimers], [1, 0, 0]);
    assert.ok(rig.numAsked >= 4);
  });

  test("leaves a connection alone on which this side had nothing to say", async () => {
    const rig = new Rig();
    rig.watch.start();
    await rig.passWithServer(120_000);
    assert.equal(rig.numUnheard, 0);
    assert.ok(rig.questions >= 60, "it was asked");
    assert.ok(rig.numAsked >= 60, "and answered");
  });

  test("takes its own late looks for no deafness of the other side", async () => {
    const rig = new Rig();
    rig.watch.start();
    await rig.passWithServer(60_000, { isHeard: false, stepMs: 1_000 });
    assert.equal(rig.numUnheard, 0);
  });

  test("believes an answer more than questions", async () => {
    const rig = new Rig();
    rig.watch.start();
    for (let i = 0; i < 40; i += 1) {
      rig.answers += 1;
      await rig.passWithServer(1_000, { isHeard: false });
    }
    assert.equal(rig.numUnheard, 0);
  });
});
