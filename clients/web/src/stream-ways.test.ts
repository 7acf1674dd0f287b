import assert from "node:assert/strict";
import { describe, test } from "node:test";
import { HELLO } from "./fakes.js";
import { CLOSED, Rig, settled, upTo } from "./stream-rig.js";

describe("a stream with two ways", () => {
  test("takes the second at once where the first does not come up", () => {
    const rig = new Rig({ hasTwoWays: true });
    rig.socket.onclose?.({ code: 1006, reason: "WebRTC did not come up in time." } as CloseEvent);
    assert.deepEqual([rig.sockets.length, rig.left, rig.ended], [2, "WebRTC did not come up in time.", null]);
    rig.socket.say(HELLO);
    rig.sendFrames(1, 3);
    assert.deepEqual([rig.shown, rig.phases], [upTo(3), ["connecting", "connected"]]);
    rig.reconnect();
    assert.equal(rig.sockets.length, 3);
  });

  test("resumes by the second where the first breaks, and shows each frame once", () => {
    const rig = new Rig({ hasTwoWays: true });
    rig.socket.say(HELLO);
    rig.sendFrames(1, 6);
    rig.reconnect();
    assert.match(rig.left ?? "", /lost/);
    rig.sendFrames(7, 9);
    assert.deepEqual([rig.shown, rig.sent("resume").at(-1)?.["next_seq"]], [upTo(9), 7]);
  });

  test("takes none where the first refused it, or ended", async () => {
    const refused = new Rig({ hasTwoWays: true });
    refused.socket.say({ type: "error", code: "model_unavailable", message: "No.", retryable: false });
    refused.socket.drop();
    assert.deepEqual([refused.sockets.length, refused.ended?.error?.code], [1, "model_unavailable"]);
    const ended = new Rig({ hasTwoWays: true });
    ended.socket.say(HELLO);
    ended.sendFrames(1, 2);
    ended.socket.say({ type: "eos", last_seq: 2, count: 2, reason: "ended", retryable: false });
    ended.socket.say(CLOSED);
    ended.socket.drop();
    await settled();
    assert.deepEqual([ended.sockets.length, ended.left, ended.ended?.outcome.delivered], [1, null, true]);
  });
});
