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
  private untilQuestionMs = 1_000;
  /** What an asked server sends. */
  answer = 0;
  readonly watch = new SilenceWatch({
    clock: this.clock,
    longestMs: 2_000,
    readCounts: async () => ({ received: this.count, questions: this.questions, answers: this.answers }),
    ask: () => {
      this.numAsked += 1;
      this.count += this.answer;
    },
    onSilent: () => (this.numSilent += 1),
    onUnheard: () => (this.numUnheard += 1),
  });

  /** In steps of as much as a timer may be late. */
  async pass(ms: number, stepMs = 250): Promise<void> {
    for (let i = 0; i < ms; i += stepMs) {
      this.clock.advance(stepMs);
      await Promise.resolve();
      await Promise.resolve();
    }
  }

  /** As `pass`; pictures come all the time, and each half second the server asks, unless its last question was answered just now. */
  async passWithServer(ms: number, { isHeard = true, stepMs = 250 } = {}): Promise<void> {
    for (let passed = 0; passed < ms; passed += stepMs) {
      this.count += 1;
      const intervalMs = isHeard ? 1_000 : 500;
      this.untilQuestionMs = Math.min(this.untilQuestionMs, intervalMs) - stepMs;
      for (; this.untilQuestionMs <= 0; this.untilQuestionMs += intervalMs) this.questions += 1;
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
  test("tells once when the other side goes on asking, whatever comes from there", async () => {
    const rig = new Rig();
    rig.watch.start();
    await rig.passWithServer(20_000);
    await rig.passWithServer(1_250, { isHeard: false });
    assert.deepEqual([rig.numUnheard, rig.numSilent], [0, 0]);
    await rig.passWithServer(1_500, { isHeard: false });
    assert.deepEqual([rig.numUnheard, rig.numSilent, rig.clock.numTimers], [1, 0, 0]);
  });

  test("leaves a connection alone whose questions are answered, however late it looks", async () => {
    for (const stepMs of [100, 250, 340, 550, 640, 700, 800, 1_000, 60_000]) {
      const rig = new Rig();
      rig.watch.start();
      await rig.passWithServer(600_000, { stepMs });
      assert.equal(rig.numUnheard, 0, `looking every ${stepMs} ms`);
      assert.ok(rig.questions >= 500);
    }
  });

  test("survives two answers that are lost one after the other", async () => {
    const rig = new Rig();
    rig.watch.start();
    for (let i = 0; i < 40; i += 1) {
      await rig.passWithServer(3_000);
      // One more than those that come in this time: the one just before it.
      await rig.passWithServer(500, { isHeard: false });
    }
    assert.equal(rig.numUnheard, 0);
  });

  test("believes an answer, or a frame, more than questions", async () => {
    const rig = new Rig();
    rig.watch.start();
    for (let i = 0; i < 40; i += 1) {
      rig.answers += 1;
      await rig.passWithServer(1_000, { isHeard: false });
    }
    assert.equal(rig.numUnheard, 0);
  });

  test("takes its own late looks for no deafness of the other side", async () => {
    const rig = new Rig();
    rig.watch.start();
    await rig.passWithServer(60_000, { isHeard: false, stepMs: 1_000 });
    assert.equal(rig.numUnheard, 0);
  });
});
