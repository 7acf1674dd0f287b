import { Acknowledger } from "./acknowledger.js";
import { delaysMs } from "./backoff.js";
import { Connection } from "./connection.js";
import { ConnectionLostError, CONTROLLER_CONFLICT, DecodeError, IthakaError, StreamError, TOKEN_INVALID } from "./errors.js";
import { LivePosition, StreamPosition } from "./position.js";
import { buildAck, buildFin, buildResume, buildWish, } from "./protocol.js";
const ATTEMPT_TIMEOUT_MS = 5_000;
const FINISH_TIMEOUT_MS = 10_000;
const MAX_FAILED_DECODES = 3;
/** The stream of a session over as many connections as it takes: resumed after a loss, finished with a verdict. */
export class Stream {
    options;
    listener;
    position;
    numConnections = 0;
    token;
    connection = null;
    isConnected = false;
    hasEnded = false;
    hasFinished = false;
    wish = null;
    finalState = null;
    delays = null;
    giveUpAt = Number.POSITIVE_INFINITY;
    failedDecodes = { at: -1, count: 0 };
    cancelTimer = () => { };
    attemptNow = null;
    acknowledger;
    constructor(options, listener) {
        this.options = options;
        this.listener = listener;
        this.position = options.isLive || options.isViewer ? new LivePosition() : new StreamPosition();
        this.token = options.token;
        this.acknowledger = new Acknowledger(options.clock, () => this.acknowledge());
    }
    // -- for the owner ---------------------------------------------------------------------------------------------------
    start() {
        if (this.options.isTakeover) {
            this.numConnections = 1;
            this.reconnect(new ConnectionLostError("The connection was lost."));
            return;
        }
        this.listener.onPhase("connecting");
        this.connect(this.options.connectTimeoutMs);
    }
    /** Frame `seq` of this connection was decoded. Returns whether it is to be shown. */
    confirm(seq) {
        if (this.position.lacksBefore(seq)) {
            this.restart(`frame ${seq} came out of the decoder after ${this.position.decodedThrough}`);
            return false;
        }
        const isShown = this.position.decode(seq);
        if (!this.options.isViewer)
            this.acknowledger.noteDecoded();
        this.finishIfComplete();
        return isShown;
    }
    /** Sent if there is a connection; what is lost is made up for after the next resume. */
    send(text) {
        if (this.isConnected)
            this.connection?.send(text);
    }
    /** Told again after each resume. */
    want(wish) {
        this.wish = wish;
        this.send(buildWish(wish));
    }
    /** The decoder broke: a fresh one starts at a key frame, which a new connection brings. */
    restart(cause) {
        const at = this.position.decodedThrough;
        this.failedDecodes = { at, count: this.failedDecodes.at === at ? this.failedDecodes.count + 1 : 1 };
        const isHopeless = this.failedDecodes.count >= MAX_FAILED_DECODES;
        this.connection?.fail(isHopeless ? new DecodeError(`Frame ${at + 1} can't be decoded: ${cause}`) : new ConnectionLostError(cause, "decode_failed"));
    }
    /** The network is back: don't wait for the next attempt. */
    hurry() {
        this.attemptNow?.();
    }
    /** Leave at once, without a further word. */
    close() {
        this.hasEnded = true;
        this.disarm();
        this.acknowledger.stop();
        this.connection?.close();
    }
    // -- what the connection tells -----------------------------------------------------------------------------------------
    onHello(hello) {
        const nextSeq = this.position.begin(hello);
        this.disarm();
        this.numConnections += 1;
        this.delays = null;
        this.isConnected = true;
        this.hasFinished = false;
        this.listener.onConnected(hello);
        this.send(buildResume(hello.stream, nextSeq));
        if (this.wish !== null && this.numConnections > 1)
            this.send(buildWish(this.wish));
        this.listener.onPhase("connected");
    }
    onFrame(frame) {
        this.position.receive(frame);
        if (!this.options.isViewer)
            this.acknowledger.noteReceived();
        this.listener.onFrame(frame);
    }
    onState(state) {
        if (state.state === "closed" || state.state === "failed")
            this.finalState = state;
        this.listener.onState(state);
    }
    onEndOfStream(end) {
        this.position.finish(end);
        this.listener.onLastFrame();
        this.finishIfComplete();
    }
    onClosed(error) {
        const wasConnected = this.isConnected;
        this.isConnected = false;
        this.connection = null;
        this.acknowledger.stop();
        this.disarm();
        if (this.hasEnded)
            return;
        if (error === null || this.finalState !== null) {
            void this.conclude();
            return;
        }
        const hasOtherWay = error instanceof ConnectionLostError && this.options.fallBack?.(error);
        if (wasConnected && error instanceof ConnectionLostError)
            this.reconnect(error);
        else if (hasOtherWay)
            this.connect(this.options.connectTimeoutMs);
        else if (this.delays !== null)
            void this.judgeRefusal(error);
        else
            this.end(this.outcome(this.finalState), error);
    }
    // -- one connection after the other ------------------------------------------------------------------------------------
    connect(timeoutMs) {
        const { clock, openSocket, url } = this.options;
        this.connection = new Connection(clock, openSocket, url, this.token, this);
        this.arm(timeoutMs, () => this.connection?.fail(new ConnectionLostError("The server did not say hello in time.", "connect_timeout")));
    }
    reconnect(lost) {
        const now = this.options.clock.now();
        if (this.delays === null) {
            this.delays = delaysMs(this.options.random);
            this.giveUpAt = now + this.options.resumeTimeoutMs;
            this.listener.onPhase("reconnecting");
        }
        if (now >= this.giveUpAt) {
            this.end(this.outcome(null), lost);
            return;
        }
        const attempt = () => {
            this.disarm();
            this.connect(ATTEMPT_TIMEOUT_MS);
        };
        this.arm(this.delays.next().value, attempt);
        this.attemptNow = attempt;
    }
    /** An attempt to reconnect was turned down: wait, get a new token, or accept that it is over. */
    async judgeRefusal(error) {
        const closeCode = error instanceof StreamError ? error.closeCode : 0;
        // The server may not have noticed yet that the lost connection is gone.
        if (error instanceof ConnectionLostError || closeCode === CONTROLLER_CONFLICT) {
            this.reconnect(error);
            return;
        }
        if (closeCode === TOKEN_INVALID) {
            const token = await this.options.renewToken();
            if (this.hasEnded)
                return;
            if (token !== null) {
                this.token = token;
                this.reconnect(error);
                return;
            }
        }
        const verdict = await this.options.fetchVerdict();
        if (this.hasEnded)
            return;
        if (verdict !== null && verdict.delivered !== null)
            this.settle(verdict);
        else
            this.end(this.outcome(null), error);
    }
    finishIfComplete() {
        const end = this.position.end;
        if (end === null || !this.position.isComplete || this.hasFinished || !this.isConnected || this.options.isViewer)
            return;
        this.hasFinished = true;
        this.acknowledger.settle();
        this.acknowledge();
        this.send(buildFin(this.position.decodedCount, end.lastSeq));
        this.arm(FINISH_TIMEOUT_MS, () => {
            this.connection?.close();
            void this.conclude();
        });
    }
    async conclude() {
        let verdict = this.finalState;
        if (verdict?.delivered == null)
            verdict = (await this.options.fetchVerdict()) ?? verdict;
        if (!this.hasEnded)
            this.settle(verdict);
    }
    settle(verdict) {
        const { position } = this;
        if (position.isComplete && verdict?.state !== "failed") {
            this.end(this.outcome(verdict), null);
            return;
        }
        const code = position.end?.reason || verdict?.reason || "session_ended";
        const message = `The session ended after frame ${position.decodedThrough}.`;
        this.end(this.outcome(verdict), new StreamError(code, message, position.end?.retryable ?? false, 0));
    }
    end(outcome, error) {
        this.hasEnded = true;
        this.disarm();
        this.listener.onPhase("ended");
        this.listener.onEnded(outcome, error);
    }
    outcome(verdict) {
        const { position } = this;
        return {
            delivered: verdict?.delivered ?? null,
            state: verdict?.state ?? "closed",
            reason: verdict?.reason ?? "unknown",
            lastSeq: position.end?.lastSeq ?? position.receivedThrough,
            decodedCount: position.decodedCount,
        };
    }
    acknowledge() {
        this.send(buildAck(this.position.receivedThrough, this.position.decodedThrough));
    }
    arm(delayMs, callback) {
        this.disarm();
        this.cancelTimer = this.options.clock.after(delayMs, callback);
    }
    disarm() {
        this.cancelTimer();
        this.cancelTimer = () => { };
        this.attemptNow = null;
    }
}
