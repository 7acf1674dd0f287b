const RECEIVED_DELAY_MS = 50;
/** At 200 acknowledgements a second an unpaced stream stays clear of the server's limit of messages. */
const SHORTEST_INTERVAL_MS = 5;
/** When to acknowledge: a decoded frame at once, a received one soon, and never more often than the server wants to hear. */
export class Acknowledger {
    clock;
    send;
    lastSentAt = Number.NEGATIVE_INFINITY;
    dueAt = Number.POSITIVE_INFINITY;
    cancel = () => { };
    constructor(clock, send) {
        this.clock = clock;
        this.send = send;
    }
    noteReceived() {
        this.schedule(RECEIVED_DELAY_MS);
    }
    noteDecoded() {
        this.schedule(0);
    }
    /** Everything so far is acknowledged; nothing is owed. */
    settle() {
        this.cancel();
        this.dueAt = Number.POSITIVE_INFINITY;
        this.lastSentAt = this.clock.now();
    }
    /** The connection is gone. */
    stop() {
        this.cancel();
        this.dueAt = Number.POSITIVE_INFINITY;
    }
    schedule(delayMs) {
        const now = this.clock.now();
        const dueAt = Math.max(now + delayMs, this.lastSentAt + SHORTEST_INTERVAL_MS);
        if (dueAt >= this.dueAt)
            return;
        this.cancel();
        if (dueAt <= now) {
            this.fire();
        }
        else {
            this.dueAt = dueAt;
            this.cancel = this.clock.after(dueAt - now, () => this.fire());
        }
    }
    fire() {
        this.settle();
        this.send();
    }
}
