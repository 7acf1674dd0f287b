import type { Clock } from "./clock.js";

const LOOK_INTERVAL_MS = 250;
/** What a look counts at most: where everything stood still, this page too, what came meanwhile is not read yet. */
const LONGEST_LOOK_MS = 1_000;
const ASK_AFTER_MS = 500;

export interface SilenceParts {
  readonly clock: Clock;
  readonly longestMs: number;
  /** Grows while something arrives; 0 where that is not known, which counts as no silence. */
  readonly readCount: () => Promise<number>;
  /** Makes the other side send something, if it is there: it may have nothing to say by itself. */
  readonly ask: () => void;
  readonly onSilent: () => void;
}

/** Watches what arrives: asks where nothing does, again and again, and tells once when nothing has for `longestMs`. */
export class SilenceWatch {
  private cancelLook: () => void = () => {};
  private isOn = false;

  constructor(private readonly parts: SilenceParts) {}

  /** Begins to count the silence now. */
  start(): void {
    this.isOn = true;
    this.look(Number.NaN, 0, this.parts.clock.now());
  }

  stop(): void {
    this.isOn = false;
    this.cancelLook();
  }

  private look(before: number, beforeMs: number, lookedAt: number): void {
    const { clock, longestMs, readCount, ask, onSilent } = this.parts;
    this.cancelLook = clock.after(LOOK_INTERVAL_MS, () => {
      void readCount().then((count) => {
        if (!this.isOn) return;
        const now = clock.now();
        const silentMs = count > before || count === 0 ? 0 : beforeMs + Math.min(now - lookedAt, LONGEST_LOOK_MS);
        if (silentMs >= longestMs) {
          this.stop();
          onSilent();
          return;
        }
        if (silentMs >= ASK_AFTER_MS) ask();
        this.look(count, silentMs, now);
      });
    });
  }
}
