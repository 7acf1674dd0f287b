import type { Clock } from "./clock.js";

const RECEIVED_DELAY_MS = 50;
/** At 200 acknowledgements a second an unpaced stream stays clear of the server's limit of messages. */
const SHORTEST_INTERVAL_MS = 5;

/** When to acknowledge: a decoded frame at once, a received one soon, and never more often than the server wants to hear. */
export class Acknowledger {
  private lastSentAt = Number.NEGATIVE_INFINITY;
  private dueAt = Number.POSITIVE_INFINITY;
  private cancel: () => void = () => {};

  constructor(
    private readonly clock: Clock,
    private readonly send: () => void,
  ) {}

  noteReceived(): void {
    this.schedule(RECEIVED_DELAY_MS);
  }

  noteDecoded(): void {
    this.schedule(0);
  }

  /** Everything so far is acknowledged; nothing is owed. */
  settle(): void {
    this.cancel();
    this.dueAt = Number.POSITIVE_INFINITY;
    this.lastSentAt = this.clock.now();
  }

  /** The connection is gone. */
  stop(): void {
    this.cancel();
    this.dueAt = Number.POSITIVE_INFINITY;
  }

  private schedule(delayMs: number): void {
    const now = this.clock.now();
    const dueAt = Math.max(now + delayMs, this.lastSentAt + SHORTEST_INTERVAL_MS);
    if (dueAt >= this.dueAt) return;
    this.cancel();
    if (dueAt <= now) {
      this.fire();
    } else {
      this.dueAt = dueAt;
      this.cancel = this.clock.after(dueAt - now, () => this.fire());
    }
  }

  private fire(): void {
    this.settle();
    this.send();
  }
}
