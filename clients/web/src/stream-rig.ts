import assert from "node:assert/strict";
import type { IthakaError } from "./errors.js";
import { FakeClock, FakeSocket, frameBytes, HELLO } from "./fakes.js";
import type { EncodedFrame, StateChanged } from "./protocol.js";
import { type Outcome, type Phase, Stream, type StreamListener } from "./stream.js";

export const CLOSED = { type: "state", state: "closed", reason: "ended", delivered: true };

/** A stream on fake sockets and a fake clock, whose decoder decodes at once unless told otherwise. */
export class Rig implements StreamListener {
  readonly clock = new FakeClock();
  readonly sockets: FakeSocket[] = [];
  readonly phases: Phase[] = [];
  readonly shown: number[] = [];
  readonly undecoded: number[] = [];
  readonly stream: Stream;
  ended: { outcome: Outcome; error: IthakaError | null } | null = null;
  decodesAtOnce = true;
  numDecoders = 0;
  numFlushes = 0;
  verdict: StateChanged | null = null;
  token: string | null = null;
  /** Why the first way was left, where there are two. */
  left: string | null = null;

  constructor({ isViewer = false, isTakeover = false, hasTwoWays = false } = {}) {
    this.stream = new Stream(
      {
        isViewer,
        isTakeover,
        url: "ws://host/stream",
        token: "tok-1",
        openSocket: (url, protocols) => {
          this.sockets.push(new FakeSocket(url, protocols));
          return this.socket;
        },
        clock: this.clock,
        random: () => 0,
        fetchVerdict: async () => this.verdict,
        renewToken: async () => this.token,
        fallBack: (lost) => {
          if (!hasTwoWays || this.left !== null) return false;
          this.left = lost.message;
          return true;
        },
        connectTimeoutMs: 60_000,
        resumeTimeoutMs: 30_000,
      },
      this,
    );
    this.stream.start();
  }

  get socket(): FakeSocket {
    const socket = this.sockets.at(-1);
    assert.ok(socket);
    return socket;
  }

  onPhase(phase: Phase): void {
    this.phases.push(phase);
  }

  onConnected(): void {
    this.numDecoders += 1;
    this.undecoded.length = 0;
  }

  onFrame(frame: EncodedFrame): void {
    this.undecoded.push(frame.seq);
    if (this.decodesAtOnce) this.decode();
  }

  onLastFrame(): void {
    this.numFlushes += 1;
  }

  onState(): void {}

  onEnded(outcome: Outcome, error: IthakaError | null): void {
    assert.equal(this.ended, null);
    this.ended = { outcome, error };
  }

  decode(count = this.undecoded.length): void {
    for (const seq of this.undecoded.splice(0, count)) if (this.stream.confirm(seq)) this.shown.push(seq);
  }

  /** Frames as the server re-sends them: from the key frame at or before `next`, through `last`. */
  sendFrames(next: number, last: number): void {
    for (let seq = Math.floor((next - 1) / 4) * 4 + 1; seq <= last; seq += 1) {
      this.socket.deliver(frameBytes(seq, { decodeOnly: seq < next }));
    }
  }

  sent(type: string): Record<string, unknown>[] {
    return this.sockets.flatMap(({ sent }) => sent).filter((message) => message["type"] === type);
  }

  /** The connection breaks and the next one says hello. */
  reconnect(): void {
    this.socket.drop();
    this.clock.advance(60);
    this.socket.say(HELLO);
  }
}

export const settled = (): Promise<void> => new Promise((resolve) => setImmediate(resolve));
export const upTo = (last: number): number[] => Array.from({ length: last }, (_, index) => index + 1);
