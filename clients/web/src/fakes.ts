/** Stand-ins for what lies outside, for tests: a clock that is wound by hand and a WebSocket with a scripted server. */
import type { Clock } from "./clock.js";
import type { Socket } from "./connection.js";
import { FLAG_DECODE_ONLY, FLAG_KEY_FRAME, HEADER_BYTES } from "./protocol.js";

export class FakeClock implements Clock {
  private time = 1_000;
  private timers: { at: number; callback: () => void }[] = [];

  now(): number {
    return this.time;
  }

  after(delayMs: number, callback: () => void): () => void {
    const timer = { at: this.time + delayMs, callback };
    this.timers.push(timer);
    return () => {
      this.timers = this.timers.filter((other) => other !== timer);
    };
  }

  get numTimers(): number {
    return this.timers.length;
  }

  /** Let time pass; timers fire in order, at their time. */
  advance(ms: number): void {
    const until = this.time + ms;
    for (;;) {
      const next = this.timers.filter(({ at }) => at <= until).sort((a, b) => a.at - b.at)[0];
      if (next === undefined) break;
      this.timers = this.timers.filter((timer) => timer !== next);
      this.time = Math.max(this.time, next.at);
      next.callback();
    }
    this.time = until;
  }
}

export class FakeSocket implements Socket {
  binaryType = "";
  readonly protocol = "ithaka.v1";
  onopen: ((event: Event) => void) | null = null;
  onmessage: ((event: MessageEvent) => void) | null = null;
  onclose: ((event: CloseEvent) => void) | null = null;
  readonly sent: Record<string, unknown>[] = [];
  closedWith: number | null = null;

  constructor(
    readonly url: string,
    readonly protocols: string[],
  ) {}

  send(text: string): void {
    this.sent.push(JSON.parse(text) as Record<string, unknown>);
  }

  close(code?: number): void {
    this.closedWith = code ?? 1005;
  }

  // -- the server's side

  say(message: unknown): void {
    this.deliver(typeof message === "string" ? message : JSON.stringify(message));
  }

  deliver(data: string | ArrayBuffer): void {
    this.onmessage?.({ data } as MessageEvent);
  }

  drop(code = 1006): void {
    this.onclose?.({ code, reason: "" } as CloseEvent);
  }
}

export const HELLO = {
  type: "hello",
  version: 1,
  session: "abc",
  stream: "s1",
  role: "controller",
  next_seq: 1,
  window: 8,
  codec: "avc1.42E01F",
  width: 128,
  height: 64,
  fps: 16,
  time_base: [1, 16],
  pixels: "lossy",
  model: "numbers",
  controls: ["KeyW"],
  takes_prompt: true,
  takes_pointer: true,
};

/** A frame's bytes; a key frame is every fourth. */
export function frameBytes(seq: number, { decodeOnly = false, controlId = 0 } = {}): ArrayBuffer {
  const data = new ArrayBuffer(HEADER_BYTES + 1);
  const view = new DataView(data);
  view.setUint8(0, 1);
  view.setUint8(1, (seq % 4 === 1 ? FLAG_KEY_FRAME : 0) | (decodeOnly ? FLAG_DECODE_ONLY : 0));
  view.setUint16(2, HEADER_BYTES);
  view.setUint32(4, 1);
  view.setBigUint64(8, BigInt(seq));
  view.setBigUint64(16, BigInt(seq - 1));
  view.setBigUint64(24, BigInt(controlId));
  view.setUint32(32, seq - 1);
  return data;
}
