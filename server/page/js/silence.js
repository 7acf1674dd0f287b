import { UnheardTime } from "./unheard.js";
const LOOK_INTERVAL_MS = 200;
/** What a look counts at most: where everything stood still, this page too, what came meanwhile is not read yet. */
const LONGEST_LOOK_MS = 1_000;
const ASK_AFTER_MS = 500;
/** Watches a connection both ways: asks where nothing comes, again and again, and tells once when a way was dead for `longestMs`. */
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
        this.look(Number.NaN, 0, this.parts.clock.now(), new UnheardTime());
    }
    stop() {
        this.isOn = false;
        this.cancelLook();
    }
    look(before, beforeMs, lookedAt, unheard) {
        const { clock, longestMs, readCounts, ask, onSilent, onUnheard } = this.parts;
        this.cancelLook = clock.after(LOOK_INTERVAL_MS, () => {
            void readCounts().then((counts) => {
                if (!this.isOn)
                    return;
                const now = clock.now();
                const { received } = counts;
                const silentMs = received > before || received === 0 ? 0 : beforeMs + Math.min(now - lookedAt, LONGEST_LOOK_MS);
                const unheardMs = unheard.look(counts, now);
                if (silentMs >= longestMs || unheardMs >= longestMs) {
                    this.stop();
                    if (silentMs >= longestMs)
                        onSilent();
                    else
                        onUnheard();
                    return;
                }
                if (silentMs >= ASK_AFTER_MS)
                    ask();
                this.look(received, silentMs, now, unheard);
            });
        });
    }
}
