const LOOK_INTERVAL_MS = 250;
/** What a look counts at most: where everything stood still, this page too, what came meanwhile is not read yet. */
const LONGEST_LOOK_MS = 1_000;
const ASK_AFTER_MS = 500;
/** Watches what arrives: asks where nothing does, again and again, and tells once when nothing has for `longestMs`. */
export class SilenceWatch {
    parts;
    cancelLook = () => { };
    isOn = false;
    constructor(parts) {
        this.parts = parts;
    }
    /** Begins to count the silence now. */
    start() {
        this.isOn = true;
        this.look(Number.NaN, 0, this.parts.clock.now());
    }
    stop() {
        this.isOn = false;
        this.cancelLook();
    }
    look(before, beforeMs, lookedAt) {
        const { clock, longestMs, readCount, ask, onSilent } = this.parts;
        this.cancelLook = clock.after(LOOK_INTERVAL_MS, () => {
            void readCount().then((count) => {
                if (!this.isOn)
                    return;
                const now = clock.now();
                const silentMs = count > before || count === 0 ? 0 : beforeMs + Math.min(now - lookedAt, LONGEST_LOOK_MS);
                if (silentMs >= longestMs) {
                    this.stop();
                    onSilent();
                    return;
                }
                if (silentMs >= ASK_AFTER_MS)
                    ask();
                this.look(count, silentMs, now);
            });
        });
    }
}
