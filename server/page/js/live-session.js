import { awaitAdmission } from "./admission.js";
import { IthakaError, reportOf, StreamError, UsageError } from "./errors.js";
/**
 * A live session as a page uses it, whatever carries it. It waits for its place; then WebRTC is tried, and a WebSocket takes its
 * place where that does not come up, or breaks later.
 */
export class LiveSession {
    parts;
    info;
    track = null;
    socket = null;
    numConnections = 0;
    lost = null;
    hasEnded = false;
    abort = new AbortController();
    /** Returns at once; the events tell the rest. */
    constructor(parts) {
        this.parts = parts;
        this.info = parts.info;
        void this.begin();
    }
    get hello() {
        return this.carried?.hello ?? null;
    }
    /** What carries it; null while that is not known. */
    get carrier() {
        if (this.socket !== null)
            return "websocket";
        return this.track === null ? null : "webrtc";
    }
    /** Which frame a picture of the video element is, see `LiveVideo.frameAt`. */
    frameAt(rtpTimestamp) {
        return this.track?.frameAt(rtpTimestamp) ?? null;
    }
    /** Returns the control's id. Throws UsageError before `connected`, and as `Session.control`. */
    control(change) {
        if (this.carried === null)
            throw new UsageError("The session is not connected yet.");
        return this.carried.control(change);
    }
    pause() {
        this.carried?.pause();
    }
    play() {
        this.carried?.play();
    }
    /** Generate no more. */
    end() {
        this.carried?.end();
    }
    /** Leave at once, without a further event. The last picture stays. */
    close() {
        this.hasEnded = true;
        this.abort.abort();
        this.carried?.close();
    }
    get carried() {
        return this.socket ?? this.track;
    }
    async begin() {
        try {
            if (this.parts.openTrack === null)
                this.openSocket(null, null);
            else
                await this.beginWithTrack(this.parts.openTrack);
        }
        catch (error) {
            this.fail(error);
        }
    }
    async beginWithTrack(openTrack) {
        if (this.info.state === "queued") {
            const standing = await awaitAdmission({ ...this.parts, signal: this.abort.signal, outageTimeoutMs: this.parts.resumeTimeoutMs });
            if (standing.state === "closed" || standing.state === "failed")
                throw this.refusal(standing);
        }
        if (this.hasEnded)
            return;
        let track;
        try {
            track = await openTrack(this.trackEvents());
        }
        catch (error) {
            if (!this.hasEnded)
                this.openSocket(reportOf(error).message, null);
            return;
        }
        this.track = track;
        if (this.hasEnded) {
            track.close();
            return;
        }
        this.parts.events.carrier?.("webrtc", null);
        // It may have broken in the moment in which it came up.
        if (this.lost !== null)
            await this.takeOver(track, this.lost);
    }
    trackEvents() {
        const { events } = this.parts;
        return {
            connected: (hello) => this.noteConnected(hello),
            state: (state) => events.state?.(state),
            ended: (outcome, error) => {
                this.hasEnded = true;
                events.ended?.(outcome, error);
            },
            lost: (error) => {
                this.lost = error;
                if (this.track !== null)
                    this.takeOver(this.track, error).catch((cause) => this.fail(cause));
            },
        };
    }
    /** The track is gone and the session is not: the WebSocket goes on with it. */
    async takeOver(track, error) {
        this.parts.events.phase?.("reconnecting");
        const takeover = await track.giveUp(this.parts.resumeTimeoutMs);
        if (this.hasEnded)
            takeover.picture?.close();
        else
            this.openSocket(error.message, takeover);
    }
    openSocket(why, takeover) {
        const { events } = this.parts;
        const told = {
            ...events,
            connected: (hello) => this.noteConnected(hello),
            ended: (outcome, error) => {
                this.hasEnded = true;
                events.ended?.(outcome, error);
            },
        };
        this.socket = this.parts.openSocket(told, takeover);
        events.carrier?.("websocket", why);
    }
    noteConnected(hello) {
        this.numConnections += 1;
        this.parts.events.connected?.(hello, this.numConnections);
    }
    refusal({ reason, message, retryable }) {
        return new StreamError(reason || "session_ended", message || "The session ended before it began.", retryable, 0);
    }
    fail(error) {
        if (this.hasEnded)
            return;
        this.hasEnded = true;
        const report = reportOf(error);
        const outcome = { delivered: null, state: "failed", reason: report.code, lastSeq: 0, decodedCount: 0 };
        this.parts.events.ended?.(outcome, error instanceof IthakaError ? error : report);
    }
}
