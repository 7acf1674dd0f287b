const CATCH_UP = 0.85;
/**
 * When decoded pictures are shown. None is ever left out.
 *
 * The server paces chunks. Where a chunk is one frame, it is shown at once. Frames of a longer chunk arrive together and are
 * spread over media time, one every 1/fps seconds, a little faster while more than one chunk waits. At most `bound` pictures
 * wait: beyond that the oldest is shown right away.
 */
export class Presenter {
    clock;
    intervalMs;
    bound;
    show;
    waiting = [];
    lastDueAt = Number.NEGATIVE_INFINITY;
    chunkFrames = 1;
    framesOfChunk = 0;
    newestChunk = -1;
    cancel = null;
    constructor(clock, intervalMs, bound, show) {
        this.clock = clock;
        this.intervalMs = intervalMs;
        this.bound = bound;
        this.show = show;
    }
    get numWaiting() {
        return this.waiting.length;
    }
    push(item) {
        this.count(item.chunk);
        this.waiting.push(item);
        while (this.waiting.length > this.bound)
            this.showNext();
        this.showDue();
    }
    /** Show all that wait, now. */
    drain() {
        this.cancel?.();
        this.cancel = null;
        while (this.waiting.length > 0)
            this.showNext();
    }
    count(chunk) {
        this.framesOfChunk = chunk === this.newestChunk ? this.framesOfChunk + 1 : 1;
        this.newestChunk = chunk;
        this.chunkFrames = Math.max(this.chunkFrames, this.framesOfChunk);
    }
    showDue() {
        this.cancel?.();
        this.cancel = null;
        while (this.waiting.length > 0) {
            const delayMs = this.dueAt() - this.clock.now();
            if (delayMs > 0) {
                this.cancel = this.clock.after(delayMs, () => this.showDue());
                return;
            }
            this.showNext();
        }
    }
    dueAt() {
        if (this.chunkFrames === 1)
            return Number.NEGATIVE_INFINITY;
        return this.lastDueAt + this.intervalMs * (this.waiting.length > this.chunkFrames ? CATCH_UP : 1);
    }
    showNext() {
        const now = this.clock.now();
        const dueAt = this.dueAt();
        // A late timer must not slow the stream down; a late frame starts the time anew.
        this.lastDueAt = dueAt <= now && now - dueAt < this.intervalMs ? dueAt : now;
        const item = this.waiting.shift();
        if (item !== undefined)
            this.show(item);
    }
}
