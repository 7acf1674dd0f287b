const LOOK_INTERVAL_MS = 250;
/** Watches a count that grows while something arrives, and tells once when it has not grown for `longestMs`. */
export class SilenceWatch {
    clock;
    longestMs;
    readCount;
    onSilent;
    cancelLook = () => { };
    isOn = false;
    constructor(clock, longestMs, readCount, onSilent) {
        this.clock = clock;
        this.longestMs = longestMs;
        this.readCount = readCount;
        this.onSilent = onSilent;
    }
    /** Begins to count the silence now; without effect while it is on. */
    start() {
        if (this.isOn)
            return;
        this.isOn = true;
        this.look(Number.NaN, this.clock.now());
    }
    stop() {
        this.isOn = false;
        this.cancelLook();
    }
    look(before, grewAt) {
        this.cancelLook = this.clock.after(LOOK_INTERVAL_MS, () => {
            void this.readCount().then((count) => {
                if (!this.isOn)
                    return;
                const now = this.clock.now();
                const hasGrown = count > before;
                if (!hasGrown && now - grewAt >= this.longestMs) {
                    this.stop();
                    this.onSilent();
                }
                else {
                    this.look(count, hasGrown ? now : grewAt);
                }
            });
        });
    }
}
