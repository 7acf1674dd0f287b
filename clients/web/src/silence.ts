import type { Clock } from "./clock.js";
import { type Counts, UnheardTime } from "./unheard.js";

const LOOK_INTERVAL_MS = 200;
/** What a look counts at most: where everything stood still, this page too, what came meanwhile is not read yet. */
const LONGEST_LOOK_MS = 1_000;
const ASK_AFTER_MS = 500;

export interface SilenceParts {
  readonly clock: Clock;
  readonly longestMs: number;
  /** No silence where it is not known what was received. */
  readonly readCounts: () => Promise<Counts>;
  /** Sends something that makes the other side send something too, if it is there: it may have nothing to say by itself. */
  readonly ask: () => void;
  /** Nothing came. */
  readonly onSilent: () => void;
  /** Nothing arrived there, though something came from there. */
  readonly onUnheard: () => void;
}

/** Watches a connection both ways: asks where nothing comes, again and again, and tells once when a way was dead for `longestMs`. */
export class SilenceWatch {
  private cancelLook: () => void = () => {};
  private isOn = false;

  constructor(private readonly parts: SilenceParts) {}

  /** Begins to count the silence now. */
  start(): void {
    this.isOn = true;
    this.look(Number.NaN, 0, this.parts.clock.now(), new UnheardTime());
  }

  stop(): void {
    this.isOn = false;
    this.cancelLook();
  }

  private look(before: number, beforeMs: number, lookedAt: number, unheard: UnheardTime): void {
    const { clock, longestMs, readCounts, ask, onSilent, onUnheard } = this.parts;
    this.cancelLook = clock.after(LOOK_INTERVAL_MS, () => {
      void readCounts().then((counts) => {
        if (!this.isOn) return;
        const now = clock.now();
        const { received } = counts;
        const silentMs = received > before || received === 0 ? 0 : beforeMs + Math.min(now - lookedAt, LONGEST_LOOK_MS);
        const unheardMs = unheard.look(counts, now);
        if (silentMs >= longestMs || unheardMs >= longestMs) {
          this.stop();
          if (silentMs >= longestMs) onSilent();
          else onUnheard();
          return;
        }
        if (silentMs >= ASK_AFTER_MS) ask();
        this.look(received, silentMs, now, unheard);
      });
    });
  }
}
