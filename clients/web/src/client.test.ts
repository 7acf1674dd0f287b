import assert from "node:assert/strict";
import { afterEach, beforeEach, describe, test } from "node:test";
import { Client } from "./client.js";
import { ApiError, closeError, ConnectionLostError, ProtocolError, StreamError, UnsupportedError } from "./errors.js";

const realFetch = globalThis.fetch;
let calls: { url: string; init: RequestInit }[] = [];
let answer: () => Response = () => Response.json({ models: [] });

beforeEach(() => {
  calls = [];
  globalThis.fetch = async (input, init = {}) => {
    calls.push({ url: String(input), init });
    return answer();
  };
});
afterEach(() => {
  globalThis.fetch = realFetch;
});

describe("the client", () => {
  test("lists models, ready or not, and shows its key", async () => {
    answer = () =>
      Response.json({
        models: [
          { name: "a", state: "ready", message: "", width: 128, height: 64, fps: 16, controls: ["KeyW"], takes_prompt: true, takes_pointer: false },
          { name: "b", state: "starting", message: "", width: null, height: null, fps: null, controls: null, takes_prompt: null, takes_pointer: null },
        ],
      });
    const [ready, starting] = await new Client("https://host/page?x#y", { apiKey: "secret" }).models();
    assert.equal(calls[0]?.url, "https://host/v1/models");
    assert.deepEqual(calls[0].init.headers, { Authorization: "Bearer secret" });
    assert.deepEqual([ready?.fps, ready?.controls, ready?.takesPrompt], [16, ["KeyW"], true]);
    assert.deepEqual([starting?.state, starting?.width, starting?.controls, starting?.takesPointer], ["starting", null, [], false]);
  });

  test("turns the server's errors into ApiError", async () => {
    const error = { code: "queue_full", message: "Every place is taken.", retryable: true, field: "body.model" };
    answer = () => Response.json({ error }, { status: 429, headers: { "Retry-After": "7" } });
    await assert.rejects(new Client("http://host").models(), (thrown) => {
      assert.ok(thrown instanceof ApiError);
      assert.deepEqual(
        [thrown.code, thrown.status, thrown.retryable, thrown.field, thrown.retryAfterSeconds, thrown.message],
        ["queue_full", 429, true, "body.model", 7, "Every place is taken."],
      );
      return true;
    });
  });

  test("makes sense of answers that make none", async () => {
    answer = () => new Response("<html>", { status: 502 });
    await assert.rejects(new Client("http://host").models(), { code: "http_502" });
    answer = () => Response.json([]);
    await assert.rejects(new Client("http://host").models(), ProtocolError);
  });

  test("says when nobody answers", async () => {
    answer = () => {
      throw new TypeError("fetch failed");
    };
    await assert.rejects(new Client("http://host").models(), { name: "ConnectionLostError", code: "connect_failed" });
    answer = () => {
      throw new DOMException("late", "TimeoutError");
    };
    await assert.rejects(new Client("http://host").models(), { code: "request_timeout" });
  });

  test("ends sessions", async () => {
    answer = () => Response.json({});
    await new Client("http://host").deleteSession("a/b", { force: true });
    assert.equal(calls[0]?.url, "http://host/v1/sessions/a%2Fb?force=true");
    assert.deepEqual([calls[0].init.method, calls[0].init.keepalive], ["DELETE", true]);
  });

  test("says what a browser or an address lacks, before it asks for a session", async () => {
    await assert.rejects(new Client("http://host").createSession({ model: "a", events: {} }), UnsupportedError);
    assert.deepEqual(calls, []);
  });
});

describe("close codes", () => {
  test("are refusals, violations or losses", () => {
    for (const code of [1001, 1011, 1012, 4401, 4403, 4404, 4409, 4410, 4429]) {
      const error = closeError(code, null);
      assert.ok(error instanceof StreamError && error.closeCode === code && error.message !== "");
    }
    assert.ok(closeError(1008, null) instanceof ProtocolError);
    for (const code of [1005, 1006, 1015, 3000]) assert.ok(closeError(code, null) instanceof ConnectionLostError);
  });

  test("come with the server's words", () => {
    const overdue = closeError(1008, { code: "ack_timeout", message: "Overdue.", retryable: true });
    assert.ok(overdue instanceof ConnectionLostError);
    const wrong = closeError(1008, { code: "ack_shrunk", message: "Smaller.", retryable: false });
    assert.ok(wrong instanceof ProtocolError);
    assert.deepEqual([wrong.code, wrong.message], ["ack_shrunk", "Smaller."]);
  });

  test("are named by the server's error where there are none", () => {
    const taken = closeError(1006, { code: "controller_connected", message: "Another.", retryable: true });
    assert.ok(taken instanceof StreamError && taken.closeCode === 4409);
    const lost = closeError(1006, null, "WebRTC fell silent.");
    assert.ok(lost instanceof ConnectionLostError && lost.message === "WebRTC fell silent.");
  });
});
