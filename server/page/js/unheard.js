/** The other side has heard nothing for so long, at least, when it asks. */
const BEFORE_QUESTION_MS = 500;
/** Longer ones are between questions that were answered. */
const LONGEST_PAUSE_MS = 750;
/** Who looks less often can't tell one pause from the other. */
const LATEST_LOOK_MS = 600;
/** How long the other side has heard nothing, by the questions that it goes on asking though a browser answers each. Pure. */
export class UnheardTime {
    before = null;
    lookedAt = 0;
    firstAt = null;
    lastAt = 0;
    /** Returns milliseconds; 0 while nothing speaks for it. */
    look(counts, now) {
        const { before, lookedAt } = this;
        this.before = counts;
        this.lookedAt = now;
        if (before === null)
            return 0;
        const isHeard = counts.answers > before.answers || now - this.lastAt > LONGEST_PAUSE_MS;
        if (isHeard || now - lookedAt > LATEST_LOOK_MS)
            this.firstAt = null;
        if (counts.questions > before.questions) {
            this.firstAt ??= now;
            this.lastAt = now;
        }
        return this.firstAt === null ? 0 : BEFORE_QUESTION_MS + this.lastAt - this.firstAt;
    }
}
