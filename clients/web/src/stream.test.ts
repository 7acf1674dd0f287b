import assert from "node:assert/strict";
import { describe, test } from "node:test";
import { DecodeError, ProtocolError, StreamError } from "./errors.js";
import { frameBytes, HELLO } from "./fakes.js";
import { CLOSED, Rig, settled, upTo } from "./stream-rig.js";

describe("a stream", () => {
  test("shows every frame once, acknowledges, says fin and takes the verdict", async () => {
    const rig = new Rig();
    assert.deepEqual(rig.socket.protocols, ["ithaka.v1", "ithaka.token.tok-1"]);
    rig.socket.say(HELLO);
    rig.sendFrames(1, 10);
    rig.socket.say({ type: "eos", last_seq: 10, count: 10, reason: "ended", retryable: false });
    rig.socket.say(CLOSED);
    rig.socket.drop(1000);
    await settled();
    assert.deepEqual(rig.shown, upTo(10));
    assert.deepEqual(rig.sent("resume"), [{ type: "resume", stream: "s1", next_seq: 1 }]);
    assert.deepEqual(rig.sent("ack").at(-1), { type: "ack", received_through: 10, decoded_through: 10 });
    assert.deepEqual(rig.sent("fin"), [{ type: "fin", decoded_count: 10, last_seq: 10 }]);
    assert.equal(rig.numFlushes, 1);
    assert.deepEqual(rig.phases, ["connecting", "connected", "ended"]);
    assert.deepEqual(rig.ended, { outcome: { delivered: true, state: "closed", reason: "ended", lastSeq: 10, decodedCount: 10 }, error: null });
    assert.equal(rig.clock.numTimers, 0);
  });

  test("says fin only when the decoder gave out the last frame", () => {
    const rig = new Rig();
    rig.decodesAtOnce = false;
    rig.socket.say(HELLO);
    rig.sendFrames(1, 6);
    rig.socket.say({ type: "eos", last_seq: 6, count: 6, reason: "ended", retryable: false });
    rig.decode(5);
    assert.deepEqual(rig.sent("fin"), []);
    rig.decode(1);
    assert.deepEqual(rig.sent("fin"), [{ type: "fin", decoded_count: 6, last_seq: 6 }]);
  });

  test("resumes after every loss without a gap or a repetition", () => {
    for (let cut = 1; cut <= 12; cut += 1) {
      const rig = new Rig();
      rig.socket.say(HELLO);
      rig.decodesAtOnce = false;
      rig.sendFrames(1, cut);
      rig.decode(Math.floor(cut / 2));
      const next = Math.floor(cut / 2) + 1;
      rig.reconnect();
      assert.deepEqual(rig.socket.sent[0], { type: "resume", stream: "s1", next_seq: next });
      rig.decodesAtOnce = true;
      rig.sendFrames(next, 14);
      rig.reconnect();
      rig.sendFrames(15, 20);
      assert.deepEqual(rig.shown, upTo(20));
      assert.equal(rig.numDecoders, 3);
      assert.deepEqual(rig.phases, ["connecting", "connected", "reconnecting", "connected", "reconnecting", "connected"]);
    }
  });

  test("acknowledges a decoded frame at once, a received one within 50 ms, and never more often than every 5 ms", () => {
    const rig = new Rig();
    rig.decodesAtOnce = false;
    rig.socket.say(HELLO);
    rig.sendFrames(1, 3);
    assert.deepEqual(rig.sent("ack"), []);
    rig.decode(1);
    assert.deepEqual(rig.sent("ack"), [{ type: "ack", received_through: 3, decoded_through: 1 }]);
    rig.decode(1);
    assert.equal(rig.sent("ack").length, 1);
    rig.clock.advance(5);
    assert.deepEqual(rig.sent("ack")[1], { type: "ack", received_through: 3, decoded_through: 2 });
    rig.socket.deliver(frameBytes(4));
    rig.clock.advance(49);
    assert.equal(rig.sent("ack").length, 2);
    rig.clock.advance(1);
    assert.deepEqual(rig.sent("ack")[2], { type: "ack", received_through: 4, decoded_through: 2 });
  });

  test("asks for the verdict that got lost with the connection", async () => {
    const rig = new Rig();
    rig.socket.say(HELLO);
    rig.sendFrames(1, 2);
    rig.socket.say({ type: "eos", last_seq: 2, count: 2, reason: "ended", retryable: false });
    rig.verdict = { type: "state", state: "closed", reason: "ended", delivered: true };
    rig.socket.drop();
    rig.clock.advance(60);
    rig.socket.drop(4404);
    await settled();
    assert.equal(rig.ended?.outcome.delivered, true);
    assert.equal(rig.ended.error, null);
  });

  test("does not wait forever for a verdict", async () => {
    const rig = new Rig();
    rig.socket.say(HELLO);
    rig.sendFrames(1, 2);
    rig.socket.say({ type: "eos", last_seq: 2, count: 2, reason: "ended", retryable: false });
    rig.clock.advance(10_000);
    await settled();
    assert.equal(rig.ended?.outcome.delivered, null);
    assert.equal(rig.socket.closedWith, 4000);
  });

  test("that failed ends with the reason, after its last frame", async () => {
    const rig = new Rig();
    rig.socket.say(HELLO);
    rig.sendFrames(1, 2);
    rig.socket.say({ type: "eos", last_seq: 2, count: 2, reason: "worker_lost", retryable: true });
    rig.socket.say({ type: "state", state: "failed", reason: "worker_lost", delivered: true });
    rig.socket.drop(1012);
    await settled();
    assert.equal(rig.ended?.error?.code, "worker_lost");
    assert.equal(rig.ended.error.retryable, true);
    assert.equal(rig.ended.outcome.delivered, true);
  });

  test("gives up an outage that lasts", () => {
    const rig = new Rig();
    rig.socket.say(HELLO);
    rig.sendFrames(1, 2);
    for (let attempt = 0; attempt < 100 && rig.ended === null; attempt += 1) {
      rig.socket.drop();
      rig.clock.advance(2_000);
    }
    assert.equal(rig.ended?.error?.code, "connection_lost");
    assert.ok(rig.sockets.length > 10 && rig.sockets.length < 30);
    assert.equal(rig.clock.numTimers, 0);
  });

  test("does not wait for the next attempt when the network is back", () => {
    const rig = new Rig();
    rig.socket.say(HELLO);
    rig.socket.drop();
    rig.stream.hurry();
    assert.equal(rig.sockets.length, 2);
    rig.clock.advance(60);
    assert.equal(rig.sockets.length, 2);
  });

  test("takes a silent server for lost", () => {
    const rig = new Rig();
    rig.socket.say(HELLO);
    rig.clock.advance(20_000);
    rig.socket.say({ type: "ping", id: 9 });
    assert.deepEqual(rig.sent("pong"), [{ type: "pong", id: 9 }]);
    rig.clock.advance(29_999);
    assert.equal(rig.phases.at(-1), "connected");
    rig.clock.advance(1);
    assert.equal(rig.phases.at(-1), "reconnecting");
  });

  test("waits where the server still counts the lost connection", () => {
    const rig = new Rig();
    rig.socket.say(HELLO);
    rig.sendFrames(1, 2);
    rig.socket.drop();
    rig.clock.advance(60);
    rig.socket.say({ type: "error", code: "controller_connected", message: "", retryable: true });
    rig.socket.drop(4409);
    rig.clock.advance(120);
    rig.socket.say(HELLO);
    rig.sendFrames(3, 4);
    assert.deepEqual(rig.shown, upTo(4));
  });

  test("gets a fresh token for an expired one", async () => {
    const rig = new Rig();
    rig.socket.say(HELLO);
    rig.socket.drop();
    rig.clock.advance(60);
    rig.token = "tok-2";
    rig.socket.drop(4401);
    await settled();
    rig.clock.advance(120);
    assert.deepEqual(rig.socket.protocols, ["ithaka.v1", "ithaka.token.tok-2"]);
  });

  test("that is refused at first ends at once, in the server's words", () => {
    const rig = new Rig();
    rig.socket.say({ type: "error", code: "session_unknown", message: "No such session.", retryable: false });
    rig.socket.drop(4404);
    assert.ok(rig.ended?.error instanceof StreamError);
    assert.equal(rig.ended.error.message, "No such session.");
  });

  test("ends on a gap, and never calls it delivered", () => {
    const rig = new Rig();
    rig.socket.say(HELLO);
    rig.sendFrames(1, 2);
    rig.socket.deliver(frameBytes(4));
    assert.ok(rig.ended?.error instanceof ProtocolError);
    assert.equal(rig.ended.outcome.delivered, null);
    assert.equal(rig.socket.closedWith, 4000);
  });

  test("is not taken for another one", async () => {
    const rig = new Rig();
    rig.socket.say(HELLO);
    rig.sendFrames(1, 2);
    rig.socket.drop();
    rig.clock.advance(60);
    rig.socket.say({ ...HELLO, stream: "s2" });
    await settled();
    assert.equal(rig.ended?.error?.code, "resume_foreign");
  });

  test("starts a broken decoder anew, but not forever", () => {
    const rig = new Rig();
    rig.socket.say(HELLO);
    rig.sendFrames(1, 2);
    for (let round = 1; round <= 2; round += 1) {
      rig.stream.restart("broken");
      rig.clock.advance(60);
      rig.socket.say(HELLO);
      assert.equal(rig.socket.sent[0]?.["next_seq"], 3);
    }
    rig.stream.restart("broken");
    assert.ok(rig.ended?.error instanceof DecodeError);
  });

  test("repeats a wish after a resume", () => {
    const rig = new Rig();
    rig.socket.say(HELLO);
    rig.stream.want("pause");
    rig.reconnect();
    assert.deepEqual(rig.socket.sent[1], { type: "pause" });
  });

  test("that is closed says nothing more", () => {
    const rig = new Rig();
    rig.socket.say(HELLO);
    rig.stream.close();
    rig.socket.drop();
    rig.clock.advance(100_000);
    assert.equal(rig.ended, null);
    assert.equal(rig.clock.numTimers, 0);
  });

  test("of a viewer begins anywhere, skips, comes back, and says nothing of what it saw", async () => {
    const rig = new Rig({ isViewer: true });
    rig.socket.say({ ...HELLO, role: "viewer" });
    rig.sendFrames(5, 7);
    rig.sendFrames(13, 14);
    rig.reconnect();
    rig.sendFrames(21, 22);
    rig.clock.advance(1_000);
    rig.socket.say({ type: "eos", last_seq: 22, count: 22, reason: "ended", retryable: false });
    rig.socket.say(CLOSED);
    rig.socket.drop(1000);
    await settled();
    assert.deepEqual(rig.shown, [5, 6, 7, 13, 14, 21, 22]);
    assert.deepEqual([rig.sent("ack"), rig.sent("fin")], [[], []]);
    assert.equal(rig.ended?.error, null);
    assert.equal(rig.ended.outcome.decodedCount, 7);
    assert.equal(rig.clock.numTimers, 0);
  });
});

describe("a stream that takes another carrier's place", () => {
  test("tries again while the server still holds the lost one, and tells its wish", () => {
    const rig = new Rig({ isTakeover: true });
    rig.stream.want("pause");
    assert.deepEqual([rig.phases, rig.sockets.length], [["reconnecting"], 0]);
    rig.clock.advance(60);
    rig.socket.drop(4409);
    rig.clock.advance(110);
    assert.equal(rig.sockets.length, 2);
    rig.socket.say(HELLO);
    assert.deepEqual([rig.phases, rig.stream.numConnections], [["reconnecting", "connected"], 2]);
    assert.deepEqual(rig.sent("pause").length, 1);
  });

  test("gives up after the longest outage", () => {
    const rig = new Rig({ isTakeover: true });
    for (let i = 0; i < 40 && rig.ended === null; i += 1) {
      rig.clock.advance(2_000);
      if (rig.ended === null) rig.socket.drop();
    }
    assert.equal(rig.ended?.error?.code, "connection_lost");
  });
});
