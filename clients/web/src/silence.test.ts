import assert from "node:assert/strict";
import { describe, test } from "node:test";
import { FakeClock } from "./fakes.js";
import { SilenceWatch } from "./silence.js";

function rig(): { clock: FakeClock; watch: SilenceWatch; counted: { count: number; numSilent: number }; pass(ms: number): Promise<void> } {
  const clock = new FakeClock();
  const counted = { count: 5, numSilent: 0 };
  const watch = new SilenceWatch(
    clock,
    3_000,
    async () => counted.count,
    () => (counted.numSilent += 1),
  );
  const pass = async (ms: number): Promise<void> => {
    for (let i = 0; i < ms; i += 250) {
      clock.advance(250);
      await Promise.resolve();
      await Promise.resolve();
    }
  };
  return { clock, watch, counted, pass };
}

describe("a watch for silence", () => {
  test("tells once, when nothing came for long enough", async () => {
    const { clock, watch, counted, pass } = rig();
    watch.start();
    await pass(2_000);
    counted.count += 1;
    watch.start();
    await pass(3_000);
    assert.equal(counted.numSilent, 0);
    await pass(10_000);
    assert.deepEqual([counted.numSilent, clock.numTimers], [1, 0]);
  });

  test("tells nothing after it was stopped, and begins anew", async () => {
    const { clock, watch, counted, pass } = rig();
    watch.start();
    await pass(2_750);
    watch.stop();
    await pass(1_000);
    assert.equal(clock.numTimers, 0);
    watch.start();
    await pass(2_750);
    assert.equal(counted.numSilent, 0);
  });
});
