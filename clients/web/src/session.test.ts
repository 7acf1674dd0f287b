import assert from "node:assert/strict";
import { describe, test } from "node:test";
import { UsageError } from "./errors.js";
import { HELLO } from "./fakes.js";
import { HeldKeys } from "./held-keys.js";
import { parseMessage, type Hello } from "./protocol.js";
import { Session, type SessionEvents, type SessionWorker } from "./session.js";
import type { Takeover } from "./takeover.js";
import type { FromWorker, ToWorker } from "./worker-messages.js";

class FakeWorker implements SessionWorker {
  onmessage: ((event: MessageEvent<FromWorker>) => void) | null = null;
  onerror: ((event: ErrorEvent) => void) | null = null;
  readonly got: ToWorker[] = [];
  isTerminated = false;

  postMessage(message: ToWorker): void {
    this.got.push(message);
  }

  terminate(): void {
    this.isTerminated = true;
  }

  say(message: FromWorker): void {
    this.onmessage?.({ data: message } as MessageEvent<FromWorker>);
  }

  get sent(): unknown[] {
    return this.got.flatMap((message) => (message.type === "send" ? [JSON.parse(message.text)] : []));
  }
}

function open(
  events: SessionEvents = {},
  token: string | null = null,
  takeover: Takeover | null = null,
  channel: { giveUp(): void } | null = null,
): { session: Session; worker: FakeWorker } {
  const worker = new FakeWorker();
  const session = new Session({
    info: { id: "abc", state: "admitted", model: "numbers", seed: 1, prompt: "", width: 128, height: 64, fps: 16, queuePosition: null },
    worker,
    order: {
      type: "open",
      streamUrl: "ws://host/stream",
      sessionUrl: "http://host/v1/sessions/abc",
      token: "tok",
      canvas: null,
      isPaced: true,
      connectTimeoutMs: 1,
      resumeTimeoutMs: 1,
    },
    events,
    renewToken: async () => token,
    takeover,
    channel,
  });
  return { session, worker };
}

const hello = (changes: Record<string, unknown> = {}): Hello => parseMessage(JSON.stringify({ ...HELLO, ...changes })) as Hello;

describe("a session", () => {
  test("numbers its controls", () => {
    const { session, worker } = open();
    worker.say({ type: "connected", hello: hello(), numConnections: 1 });
    assert.equal(session.control({ pressed: ["KeyW"] }), 1);
    assert.equal(session.control({ pointerDx: 3, prompt: "snow" }), 2);
    assert.deepEqual(worker.sent, [
      { type: "control", control_id: 1, pressed: ["KeyW"] },
      { type: "control", control_id: 2, pointer_dx: 3, prompt: "snow" },
    ]);
  });

  test("holds back what can't be taken", () => {
    const { session, worker } = open();
    assert.throws(() => session.control({ pressed: ["KeyW"] }), UsageError);
    worker.say({ type: "connected", hello: hello({ takes_prompt: false, takes_pointer: false }), numConnections: 1 });
    assert.throws(() => session.control({ prompt: "snow" }), UsageError);
    assert.throws(() => session.control({ pointerDy: 1 }), UsageError);
    assert.deepEqual(worker.sent, []);
  });

  test("tells the keys again after a resume, as a newer control", () => {
    const { session, worker } = open();
    worker.say({ type: "connected", hello: hello(), numConnections: 1 });
    session.control({ pressed: ["KeyW"] });
    session.control({ pressed: ["KeyA"] });
    session.control({ released: ["KeyA"] });
    worker.say({ type: "connected", hello: hello(), numConnections: 2 });
    assert.deepEqual(worker.sent.at(-1), { type: "control", control_id: 4, pressed: ["KeyW"], released: ["KeyA"] });
  });

  test("fetches a fresh token when the worker needs one", async () => {
    const { worker } = open({}, "tok-2");
    worker.say({ type: "token-needed" });
    await new Promise((resolve) => setImmediate(resolve));
    assert.deepEqual(worker.got.at(-1), { type: "token", token: "tok-2" });
  });

  test("passes wishes and the end on", () => {
    const ends: unknown[] = [];
    const { session, worker } = open({ ended: (outcome, error) => ends.push([outcome.delivered, error]) });
    session.pause();
    session.play();
    session.end();
    assert.deepEqual(worker.got.slice(1), ["pause", "play", "end"].map((wish) => ({ type: "wish", wish })));
    const outcome = { delivered: true, state: "closed", reason: "ended", lastSeq: 4, decodedCount: 4 };
    worker.say({ type: "ended", outcome, error: null });
    assert.deepEqual(ends, [[true, null]]);
    session.pause();
    assert.equal(worker.got.length, 4);
  });

  test("that takes another carrier's place goes on with its controls, and tells what is held", () => {
    const keys = new HeldKeys();
    keys.apply(7, { pressed: ["KeyW"] });
    const { session, worker } = open({}, null, { hello: hello(), keys, lastControlId: 7, wish: "pause", picture: null });
    assert.deepEqual(worker.got.at(-1), { type: "wish", wish: "pause" });
    assert.equal(session.control({ pressed: ["KeyA"] }), 8);
    worker.say({ type: "connected", hello: hello(), numConnections: 2 });
    const told = worker.sent.at(-1) as Record<string, unknown>;
    assert.deepEqual([told["control_id"], told["pressed"]], [9, ["KeyA", "KeyW"]]);
  });

  test("gives the data channel's place back when the WebSocket goes on, and says why", () => {
    const told: unknown[] = [];
    const channel = { giveUp: () => told.push("given up") };
    const { worker } = open({ carrier: (carrier, why) => told.push([carrier, why]) }, null, null, channel);
    worker.say({ type: "carrier", carrier: "websocket", why: "WebRTC fell silent." });
    assert.deepEqual(told, ["given up", ["websocket", "WebRTC fell silent."]]);
  });

  test("that was left says nothing more", () => {
    const seen: unknown[] = [];
    const { session, worker } = open({ phase: (phase) => seen.push(phase) });
    session.close();
    worker.say({ type: "phase", phase: "connected" });
    assert.deepEqual(worker.got.at(-1), { type: "close" });
    assert.deepEqual(seen, []);
  });

  test("ends when its worker can't be loaded", () => {
    const codes: (string | undefined)[] = [];
    const { worker } = open({ ended: (_, error) => codes.push(error?.code) });
    worker.onerror?.({ message: "404" } as ErrorEvent);
    assert.deepEqual(codes, ["internal"]);
    assert.equal(worker.isTerminated, true);
  });
});
