import assert from "node:assert/strict";
import { afterEach, beforeEach, describe, test } from "node:test";
import { ConnectionLostError, type ErrorReport, UnsupportedError } from "./errors.js";
import { FakeClock, HELLO } from "./fakes.js";
import { HeldKeys } from "./held-keys.js";
import { LiveSession, type TrackCarrier } from "./live-session.js";
import { type Hello, parseMessage } from "./protocol.js";
import type { Session, SessionEvents } from "./session.js";
import type { Takeover } from "./takeover.js";
import type { LiveEvents } from "./live-video.js";

const hello = parseMessage(JSON.stringify(HELLO)) as Hello;
const LEFT: Takeover = { hello, keys: new HeldKeys(), lastControlId: 3, wish: "pause", picture: null };
const LOST: ErrorReport = { code: "connection_lost", message: "WebRTC fell silent.", retryable: true };
const realFetch = globalThis.fetch;

/** Microtasks and streams have no clock. */
const settled = (): Promise<void> => new Promise((resolve) => setImmediate(resolve));

class FakeTrack implements TrackCarrier {
  readonly hello = hello;
  isClosed = false;
  numGivenUp = 0;
  /** What another carrier may begin with. */
  picture: VideoFrame | null = null;

  control(): number {
    return 1;
  }
  pause(): void {}
  play(): void {}
  end(): void {}
  close(): void {
    this.isClosed = true;
  }
  frameAt(): null {
    return null;
  }
  async giveUp(): Promise<Takeover> {
    this.numGivenUp += 1;
    return { ...LEFT, picture: this.picture };
  }
}

/** The server's event stream of one session; each `open` is one request. */
class FakeEvents {
  readonly requests: RequestInit[] = [];
  answer: (() => Response) | null = null;
  private controller: ReadableStreamDefaultController<Uint8Array> | null = null;

  fetch = async (_: unknown, init: RequestInit = {}): Promise<Response> => {
    this.requests.push(init);
    if (this.answer !== null) return this.answer();
    const body = new ReadableStream<Uint8Array>({ start: (controller) => void (this.controller = controller) });
    init.signal?.addEventListener("abort", () => this.controller?.error(init.signal?.reason));
    return new Response(body);
  };

  say(text: string): void {
    this.controller?.enqueue(new TextEncoder().encode(text));
  }

  state(state: string, more: Record<string, unknown> = {}): void {
    this.say(`event: state\ndata: ${JSON.stringify({ state, ...more })}\n\n`);
  }

  end(): void {
    this.controller?.close();
  }
}

class Rig {
  readonly clock = new FakeClock();
  readonly told: unknown[] = [];
  readonly track = new FakeTrack();
  readonly takeovers: (Takeover | null)[] = [];
  trackEvents: LiveEvents | null = null;
  socketEvents: SessionEvents | null = null;
  refusal: Error | null = null;
  socketRefusal: Error | null = null;
  readonly session: LiveSession;

  constructor(state: string, { isWebRtcWanted = true, refusal = null as Error | null } = {}) {
    this.refusal = refusal;
    this.session = new LiveSession({
      info: { id: "abc", state, model: "numbers", seed: 1, prompt: "", width: 128, height: 64, fps: 16, queuePosition: null },
      sessionUrl: "http://host/v1/sessions/abc",
      token: "tok",
      clock: this.clock,
      random: () => 0,
      resumeTimeoutMs: 60_000,
      events: {
        phase: (phase) => this.told.push(phase),
        carrier: (carrier, why) => this.told.push([carrier, why]),
        connected: (_, count) => this.told.push(count),
        ended: (outcome, error) => this.told.push([outcome.reason, error?.message ?? null]),
      },
      openTrack: isWebRtcWanted
        ? async (events) => {
            this.trackEvents = events;
            if (this.refusal !== null) throw this.refusal;
            return this.track;
          }
        : null,
      openSocket: (events, takeover) => {
        if (this.socketRefusal !== null) throw this.socketRefusal;
        this.socketEvents = events;
        this.takeovers.push(takeover);
        return { hello: takeover?.hello ?? null, control: () => 4, close: () => this.told.push("closed") } as unknown as Session;
      },
    });
  }
}

let server: FakeEvents;
beforeEach(() => {
  server = new FakeEvents();
  globalThis.fetch = server.fetch as typeof fetch;
});
afterEach(() => {
  globalThis.fetch = realFetch;
});

describe("a live session that waits for its place", () => {
  test("tries WebRTC when it has one, and not before", async () => {
    const rig = new Rig("queued");
    await settled();
    server.state("queued");
    server.say('event: stats\ndata: {"generated_seq": 0}\n\nevent: sta');
    await settled();
    rig.clock.advance(9_000);
    await settled();
    assert.deepEqual([rig.trackEvents, rig.told], [null, []]);
    assert.deepEqual(server.requests[0]?.headers, { Authorization: "Bearer tok" });
    server.say('te\ndata: {"state": "admitted"}\n\n');
    await settled();
    assert.deepEqual(rig.told, [["webrtc", null]]);
    assert.equal(rig.session.carrier, "webrtc");
  });

  test("asks nobody where it has its place already", async () => {
    const rig = new Rig("admitted");
    await settled();
    assert.deepEqual([rig.told, server.requests.length], [[["webrtc", null]], 0]);
  });

  test("outlives outages and a server that falls silent, not a longer outage", async () => {
    const rig = new Rig("queued");
    await settled();
    server.end();
    await settled();
    rig.clock.advance(50);
    await settled();
    assert.equal(server.requests.length, 2);
    server.state("queued");
    await settled();
    rig.clock.advance(10_000);
    await settled();
    server.answer = () => {
      throw new TypeError("fetch failed");
    };
    for (let i = 0; i < 40; i += 1) {
      rig.clock.advance(2_000);
      await settled();
    }
    assert.ok(server.requests.length > 10);
    assert.deepEqual(rig.told, [["connection_lost", "The daemon can't be reached any more."]]);
    assert.equal(rig.clock.numTimers, 0);
  });

  test("says why it never got one", async () => {
    const late = new Rig("queued");
    await settled();
    server.state("failed", { reason: "queue_timeout", message: "No place became free.", retryable: true });
    await settled();
    assert.deepEqual(late.told, [["queue_timeout", "No place became free."]]);
    server.answer = () => Response.json({ error: { code: "session_unknown", message: "None such." } }, { status: 404 });
    const unknown = new Rig("queued");
    await settled();
    assert.deepEqual(unknown.told, [["session_unknown", "None such."]]);
  });

  test("can be left", async () => {
    const rig = new Rig("queued");
    await settled();
    rig.session.close();
    await settled();
    assert.ok(server.requests[0]?.signal?.aborted);
    assert.deepEqual([rig.told, rig.trackEvents], [[], null]);
  });
});

describe("a live session", () => {
  test("falls back with the reason, and without an attempt where none is wanted", async () => {
    const rig = new Rig("admitted", { refusal: new ConnectionLostError("WebRTC did not come up in time.") });
    await settled();
    assert.deepEqual([rig.told, rig.takeovers], [[["websocket", "WebRTC did not come up in time."]], [null]]);
    const plain = new Rig("queued", { isWebRtcWanted: false });
    await settled();
    assert.deepEqual([plain.told, plain.takeovers, server.requests.length], [[["websocket", null]], [null], 0]);
  });

  test("goes over to the WebSocket when WebRTC breaks, with what was held", async () => {
    const rig = new Rig("admitted");
    await settled();
    rig.trackEvents?.connected?.(hello);
    rig.trackEvents?.lost?.(LOST);
    assert.equal(rig.session.control({ pressed: ["KeyW"] }), 1);
    await settled();
    assert.equal(rig.session.hello, hello);
    assert.equal(rig.session.control({ pressed: ["KeyW"] }), 4);
    rig.socketEvents?.connected?.(hello, 2);
    assert.deepEqual(rig.told, [["webrtc", null], 1, "reconnecting", ["websocket", "WebRTC fell silent."], 2]);
    assert.deepEqual([rig.takeovers, rig.track.numGivenUp, rig.session.carrier], [[LEFT], 1, "websocket"]);
  });

  test("goes over when WebRTC breaks in the moment in which it comes up", async () => {
    const rig = new Rig("admitted");
    rig.trackEvents?.lost?.(LOST);
    await settled();
    assert.deepEqual(rig.told, [["webrtc", null], "reconnecting", ["websocket", "WebRTC fell silent."]]);
  });

  test("ends when that fails too", async () => {
    const rig = new Rig("admitted");
    await settled();
    rig.socketRefusal = new UnsupportedError("No WebCodecs.");
    rig.trackEvents?.lost?.(LOST);
    await settled();
    assert.deepEqual(rig.told.at(-1), ["unsupported", "No WebCodecs."]);
  });

  test("tells nothing more once it was left, whatever was under way", async () => {
    const rig = new Rig("admitted");
    rig.session.close();
    await settled();
    assert.deepEqual([rig.told, rig.track.isClosed], [[], true]);
    const lost = new Rig("admitted");
    await settled();
    let isFreed = false;
    lost.track.picture = { close: () => (isFreed = true) } as unknown as VideoFrame;
    lost.trackEvents?.lost?.(LOST);
    lost.session.close();
    await settled();
    assert.deepEqual([lost.told.slice(1), lost.takeovers, isFreed], [["reconnecting"], [], true]);
  });
});
