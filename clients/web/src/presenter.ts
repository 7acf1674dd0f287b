import type { Clock } from "./clock.js";

/** What the presenter needs to know of a picture. */
export interface Presentable {
  readonly chunk: number;
}

const CATCH_UP = 0.85;

/**
 * When decoded pictures are shown. None is ever left out.
 *
 * The server paces chunks. Where a chunk is one frame, it is shown at once. Frames of a longer chunk arrive together and are
 * spread over media time, one every 1/fps seconds, a little faster while more than one chunk waits. At most `bound` pictures
 * wait: beyond that the oldest is shown right away.
 */
export class Presenter<T extends Presentable> {
  private readonly waiting: T[] = [];
  private lastDueAt = Number.NEGATIVE_INFINITY;
  private chunkFrames = 1;
  private framesOfChunk = 0;
  private newestChunk = -1;
  private cancel: (() => void) | null = null;

  constructor(
    private readonly clock: Clock,
    private readonly intervalMs: number,
    private readonly bound: number,
    private readonly show: (item: T) => void,
  ) {}

  get numWaiting(): number {
    return this.waiting.length;
  }

  push(item: T): void {
    this.count(item.chunk);
    this.waiting.push(item);
    while (this.waiting.length > this.bound) this.showNext();
    this.showDue();
  }

  /** Show all that wait, now. */
  drain(): void {
    this.cancel?.();
    this.cancel = null;
    while (this.waiting.length > 0) this.showNext();
  }

  private count(chunk: number): void {
    this.framesOfChunk = chunk === this.newestChunk ? this.framesOfChunk + 1 : 1;
    this.newestChunk = chunk;
    this.chunkFrames = Math.max(this.chunkFrames, this.framesOfChunk);
  }

  private showDue(): void {
    this.cancel?.();
    this.cancel = null;
    while (this.waiting.length > 0) {
      const delayMs = this.dueAt() - this.clock.now();
      if (delayMs > 0) {
        this.cancel = this.clock.after(delayMs, () => this.showDue());
        return;
      }
      this.showNext();
    }
  }

  private dueAt(): number {
    if (this.chunkFrames === 1) return Number.NEGATIVE_INFINITY;
    return this.lastDueAt + this.intervalMs * (this.waiting.length > this.chunkFrames ? CATCH_UP : 1);
  }

  private showNext(): void {
    const now = this.clock.now();
    const dueAt = this.dueAt();
    // A late timer must not slow the stream down; a late frame starts the time anew.
    this.lastDueAt = dueAt <= now && now - dueAt < this.intervalMs ? dueAt : now;
    const item = this.waiting.shift();
    if (item !== undefined) this.show(item);
  }
}
