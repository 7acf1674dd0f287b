import assert from "node:assert/strict";
import { describe, it } from "node:test";

import { ProtocolError } from "./errors.js";
import { LivePosition } from "./position.js";
import type { EncodedFrame, EndOfStream, Hello } from "./protocol.js";

const hello = { type: "hello", stream: "s" } as Hello;
const frame = (seq: number, isKey = false, isDecodeOnly = false): EncodedFrame => ({ seq, isKey, isDecodeOnly }) as EncodedFrame;
const end = (lastSeq: number): EndOfStream => ({ type: "eos", lastSeq, count: lastSeq, reason: "ended", retryable: false });

describe("a position in a live stream", () => {
  it("takes frames with gaps, in order, from a key frame on", () => {
    const position = new LivePosition();
    position.begin(hello);
    assert.throws(() => position.receive(frame(3)), ProtocolError);
    for (const [seq, isKey] of [
      [3, true],
      [4, false],
      [9, false],
      [40, true],
    ] as const) {
      position.receive(frame(seq, isKey));
      assert.equal(position.lacksBefore(), false);
      assert.equal(position.decode(seq), true);
    }
    assert.throws(() => position.receive(frame(40)), ProtocolError);
    assert.equal(position.decode(9), false);
    assert.deepEqual([position.receivedThrough, position.decodedThrough, position.decodedCount], [40, 40, 4]);
  });

  it("resumes behind what was decoded and begins at a key frame again", () => {
    const position = new LivePosition();
    position.begin(hello);
    position.receive(frame(5, true));
    position.decode(5);
    assert.equal(position.begin(hello), 6);
    assert.throws(() => position.receive(frame(30)), ProtocolError);
    position.receive(frame(5, true));
    assert.equal(position.decode(5), false);
    position.receive(frame(30, true));
    position.begin(hello);
    position.receive(frame(5, true));
    assert.equal(position.receivedThrough, 30, "what was acknowledged never shrinks");
  });

  it("begins with the picture that stands, and shows nothing of what leads to it", () => {
    const position = new LivePosition();
    position.begin(hello);
    for (const seq of [3, 4, 5]) position.receive(frame(seq, seq === 3, seq < 5));
    assert.deepEqual([3, 4, 5].map((seq) => position.decode(seq)), [false, false, true]);
    assert.deepEqual([position.decodedThrough, position.decodedCount], [5, 1]);
  });

  it("is complete when all that came is decoded, whatever the last frame was", () => {
    const position = new LivePosition();
    position.begin(hello);
    position.receive(frame(1, true));
    position.receive(frame(2));
    position.decode(1);
    position.finish(end(7));
    assert.equal(position.isComplete, false);
    position.decode(2);
    assert.equal(position.isComplete, true);
    assert.throws(() => position.receive(frame(8)), ProtocolError);
    assert.throws(() => new LivePosition().finish(end(-1)), ProtocolError);
  });
});
