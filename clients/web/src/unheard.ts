/** What a connection has counted so far; 0 where that is not known. */
export interface Counts {
  /** Everything that came. */
  readonly received: number;
  /** What the other side asked to learn whether anybody is here; it does so twice a second while it hears nothing. */
  readonly questions: number;
  /** What of this side's own questions was answered. */
  readonly answers: number;
}

/** What the other side has heard nothing for when its first question comes: half a second to a whole one. */
const BEFORE_FIRST_QUESTION_MS = 750;
/** Twice a second, and a look's time. */
const LONGEST_PAUSE_MS = 750;
/** Who looks, and so sends, less often than this may well not be heard in between. */
const LATEST_LOOK_MS = 450;

/**
 * How long the other side has heard nothing, though something was sent to it at each look: it goes on asking. Its questions say
 * nothing where this side was quiet itself, or looked late. Pure.
 */
export class UnheardTime {
  private before: Counts | null = null;
  private lookedAt = 0;
  private firstAt: number | null = null;
  private lastAt = 0;

  /** Returns milliseconds; 0 while nothing speaks for it. Above 0, something has to be sent. */
  look(counts: Counts, now: number): number {
    const { before, lookedAt } = this;
    this.before = counts;
    this.lookedAt = now;
    if (before === null) return 0;
    if (counts.answers > before.answers || now - lookedAt > LATEST_LOOK_MS || now - this.lastAt > LONGEST_PAUSE_MS) this.firstAt = null;
    if (counts.questions > before.questions) {
      this.firstAt ??= now;
      this.lastAt = now;
    }
    return this.firstAt === null ? 0 : BEFORE_FIRST_QUESTION_MS + this.lastAt - this.firstAt;
  }
}
