import type { Clock } from "./clock.js";

const LOOK_INTERVAL_MS = 250;

/** Watches a count that grows while something arrives, and tells once when it has not grown for `longestMs`. */
export class SilenceWatch {
  private cancelLook: () => void = () => {};
  private isOn = false;

  constructor(
    private readonly clock: Clock,
    private readonly longestMs: number,
    private readonly readCount: () => Promise<number>,
    private readonly onSilent: () => void,
  ) {}

  /** Begins to count the silence now; without effect while it is on. */
  start(): void {
    if (this.isOn) return;
    this.isOn = true;
    this.look(Number.NaN, this.clock.now());
  }

  stop(): void {
    this.isOn = false;
    this.cancelLook();
  }

  private look(before: number, grewAt: number): void {
    this.cancelLook = this.clock.after(LOOK_INTERVAL_MS, () => {
      void this.readCount().then((count) => {
        if (!this.isOn) return;
        const now = this.clock.now();
        const hasGrown = count > before;
        if (!hasGrown && now - grewAt >= this.longestMs) {
          this.stop();
          this.onSilent();
        } else {
          this.look(count, hasGrown ? now : grewAt);
        }
      });
    });
  }
}
