/** What a connection has counted so far; 0 where that is not known. */
export interface Counts {
  /** Everything that came. */
  readonly received: number;
  /** What the other side asked to learn whether anybody is here: twice a second where no answer comes, else once. */
  readonly questions: number;
  /** What comes only while something gets there: answers, and frames, since those before them were acknowledged. */
  readonly answers: number;
}

/** The other side has heard nothing for so long, at least, when it asks. */
const BEFORE_QUESTION_MS = 500;
/** Longer ones are between questions that were answered. */
const LONGEST_PAUSE_MS = 750;
/** Who looks less often can't tell one pause from the other. */
const LATEST_LOOK_MS = 600;

/** How long the other side has heard nothing, by the questions that it goes on asking though a browser answers each. Pure. */
export class UnheardTime {
  private before: Counts | null = null;
  private lookedAt = 0;
  private firstAt: number | null = null;
  private lastAt = 0;

  /** Returns milliseconds; 0 while nothing speaks for it. */
  look(counts: Counts, now: number): number {
    const { before, lookedAt } = this;
    this.before = counts;
    this.lookedAt = now;
    if (before === null) return 0;
    const isHeard = counts.answers > before.answers || now - this.lastAt > LONGEST_PAUSE_MS;
    if (isHeard || now - lookedAt > LATEST_LOOK_MS) this.firstAt = null;
    if (counts.questions > before.questions) {
      this.firstAt ??= now;
      this.lastAt = now;
    }
    return this.firstAt === null ? 0 : BEFORE_QUESTION_MS + this.lastAt - this.firstAt;
  }
}
