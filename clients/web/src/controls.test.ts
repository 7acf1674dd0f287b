import assert from "node:assert/strict";
import { describe, test } from "node:test";
import { KeyTracker, PointerMotion } from "./controls.js";
import { HeldKeys } from "./held-keys.js";

describe("keys", () => {
  test("are told once, however long they are held", () => {
    const keys = new KeyTracker(new Set(["KeyW", "KeyA"]));
    assert.deepEqual(keys.press("KeyW"), { pressed: ["KeyW"] });
    assert.equal(keys.press("KeyW"), null);
    assert.deepEqual(keys.release("KeyW"), { released: ["KeyW"] });
    assert.equal(keys.release("KeyW"), null);
  });

  test("that the model does not know are left alone", () => {
    const keys = new KeyTracker(new Set(["KeyW"]));
    assert.equal(keys.press("KeyX"), null);
    assert.equal(keys.takes("KeyX"), false);
  });

  test("are all released together", () => {
    const keys = new KeyTracker(new Set(["KeyW", "KeyA"]));
    keys.press("KeyW");
    keys.press("KeyA");
    assert.deepEqual(keys.releaseAll(), { released: ["KeyW", "KeyA"] });
    assert.equal(keys.releaseAll(), null);
    assert.equal(keys.held.size, 0);
  });

  test("are told again after an outage, with a prompt that no frame has used yet", () => {
    const held = new HeldKeys();
    assert.equal(held.snapshot(), null);
    held.apply(1, { pressed: ["KeyW", "KeyA"] });
    held.apply(2, { released: ["KeyA"], prompt: "snow" });
    held.confirm(1);
    assert.deepEqual(held.snapshot(), { pressed: ["KeyW"], released: ["KeyA"], prompt: "snow" });
    held.confirm(2);
    assert.deepEqual(held.snapshot(), { pressed: ["KeyW"], released: ["KeyA"] });
  });
});

test("pointer motion is summed until it is taken", () => {
  const motion = new PointerMotion();
  assert.equal(motion.take(), null);
  motion.add(3, -1);
  motion.add(2, 0.5);
  assert.deepEqual(motion.take(), { pointerDx: 5, pointerDy: -0.5 });
  assert.equal(motion.take(), null);
});
