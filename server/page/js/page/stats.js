const FPS_SPAN_MS = 2_000;
const NUM_LATENCIES = 50;
const MAX_OPEN_CONTROLS = 256;
/** What the page counts. Pure; times in milliseconds since the epoch. */
export class Stats {
    shown = 0;
    received = 0;
    decoded = 0;
    shownAt = [];
    latencies = [];
    open = new Map();
    sendControl(controlId, at) {
        // A paused session uses no controls; the oldest is then the least interesting.
        if (this.open.size >= MAX_OPEN_CONTROLS)
            this.open.delete(this.open.keys().next().value);
        this.open.set(controlId, at);
    }
    /** A track says how many pictures it showed; `controlId` 0 where it does not say more of them. */
    showPicture(count, at, controlId) {
        this.shown = this.received = this.decoded = count;
        this.noteShown(at, controlId);
    }
    showFrame(frame) {
        this.shown += 1;
        this.received = frame.receivedThrough;
        this.decoded = frame.decodedThrough;
        this.noteShown(frame.shownAt, frame.controlId);
    }
    noteShown(at, usedId) {
        this.shownAt = this.shownAt.filter((earlier) => earlier > at - FPS_SPAN_MS);
        this.shownAt.push(at);
        for (const [controlId, sentAt] of this.open) {
            if (controlId > usedId)
                break;
            this.open.delete(controlId);
            this.latencies.push(at - sentAt);
        }
        this.latencies = this.latencies.slice(-NUM_LATENCIES);
    }
    figures(now) {
        const recent = this.shownAt.filter((at) => at > now - FPS_SPAN_MS);
        const first = recent[0];
        const last = recent.at(-1);
        const spanMs = first === undefined || last === undefined ? 0 : last - first;
        return {
            fps: spanMs > 0 ? ((recent.length - 1) * 1000) / spanMs : null,
            latencyMs: this.latencies.at(-1) ?? null,
            medianLatencyMs: median(this.latencies),
            shown: this.shown,
            received: this.received,
            decoded: this.decoded,
        };
    }
}
function median(values) {
    const sorted = [...values].sort((a, b) => a - b);
    return sorted[sorted.length >> 1] ?? null;
}
