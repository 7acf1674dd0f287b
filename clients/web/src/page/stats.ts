import type { FrameShown } from "../index.js";

const FPS_SPAN_MS = 2_000;
const NUM_LATENCIES = 50;
const MAX_OPEN_CONTROLS = 256;

export interface Figures {
  /** Null until two frames were shown lately. */
  readonly fps: number | null;
  /** From a control to the first picture that used it, shown: the last one and the median of the last 50; milliseconds. */
  readonly latencyMs: number | null;
  readonly medianLatencyMs: number | null;
  readonly shown: number;
  readonly received: number;
  readonly decoded: number;
}

/** What the page counts. Pure; times in milliseconds since the epoch. */
export class Stats {
  private shown = 0;
  private received = 0;
  private decoded = 0;
  private shownAt: number[] = [];
  private latencies: number[] = [];
  private readonly open = new Map<number, number>();

  sendControl(controlId: number, at: number): void {
    // A paused session uses no controls; the oldest is then the least interesting.
    if (this.open.size >= MAX_OPEN_CONTROLS) this.open.delete(this.open.keys().next().value as number);
    this.open.set(controlId, at);
  }

  /** A track says how many pictures it showed; `controlId` 0 where it does not say more of them. */
  showPicture(count: number, at: number, controlId: number): void {
    this.shown = this.received = this.decoded = count;
    this.noteShown(at, controlId);
  }

  showFrame(frame: FrameShown): void {
    this.shown += 1;
    this.received = frame.receivedThrough;
    this.decoded = frame.decodedThrough;
    this.noteShown(frame.shownAt, frame.controlId);
  }

  private noteShown(at: number, usedId: number): void {
    this.shownAt = this.shownAt.filter((earlier) => earlier > at - FPS_SPAN_MS);
    this.shownAt.push(at);
    for (const [controlId, sentAt] of this.open) {
      if (controlId > usedId) break;
      this.open.delete(controlId);
      this.latencies.push(at - sentAt);
    }
    this.latencies = this.latencies.slice(-NUM_LATENCIES);
  }

  figures(now: number): Figures {
    const recent = this.shownAt.filter((at) => at > now - FPS_SPAN_MS);
    const first = recent[0];
    const last = recent.at(-1);
    const spanMs = first === undefined || last === undefined ? 0 : last - first;
    return {
      fps: spanMs > 0 ? ((recent.length - 1) * 1000) / spanMs : null,
      latencyMs: this.latencies.at(-1) ?? null,
      medianLatencyMs: median(this.latencies),
      shown: this.shown,
      received: this.received,
      decoded: this.decoded,
    };
  }
}

function median(values: readonly number[]): number | null {
  const sorted = [...values].sort((a, b) => a - b);
  return sorted[sorted.length >> 1] ?? null;
}
