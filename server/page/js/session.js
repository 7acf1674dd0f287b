import { IthakaError, UsageError } from "./errors.js";
import { HeldKeys } from "./held-keys.js";
import { buildControl } from "./protocol.js";
/** A session as a page uses it: it shows frames in its canvas and takes controls. Made by `Client.createSession`. */
export class Session {
    info;
    hello = null;
    worker;
    events;
    renewToken;
    channel;
    keys;
    lastControlId;
    hasEnded = false;
    constructor(parts) {
        this.info = parts.info;
        this.worker = parts.worker;
        this.events = parts.events;
        this.renewToken = parts.renewToken;
        this.channel = parts.channel ?? null;
        this.hello = parts.takeover?.hello ?? null;
        this.keys = parts.takeover?.keys ?? new HeldKeys();
        this.lastControlId = parts.takeover?.lastControlId ?? 0;
        this.worker.onmessage = (event) => this.receive(event.data);
        this.worker.onerror = (event) => this.fail(event.message || "the worker could not be loaded");
        const { canvas, picture, channel } = parts.order;
        this.worker.postMessage(parts.order, [canvas, picture, channel].filter((part) => part != null));
        if (parts.takeover?.wish)
            this.want(parts.takeover.wish);
    }
    /**
     * Returns the control's id: the first frame whose `controlId` is at least this used it. Keys and prompt that an outage
     * swallows are told again after it. Throws UsageError before `connected`, and for what the model does not take.
     */
    control(change) {
        if (this.hello === null)
            throw new UsageError("The session is not connected yet.");
        if (this.hello.role === "viewer")
            throw new UsageError("A viewer steers nothing.");
        if (change.prompt !== undefined && !this.hello.takesPrompt)
            throw new UsageError("The model takes no prompt.");
        if ((change.pointerDx || change.pointerDy) && !this.hello.takesPointer)
            throw new UsageError("The model takes no pointer.");
        this.lastControlId += 1;
        this.keys.apply(this.lastControlId, change);
        this.post({ type: "send", text: buildControl(this.lastControlId, change) });
        return this.lastControlId;
    }
    pause() {
        this.want("pause");
    }
    play() {
        this.want("play");
    }
    /** Generate no more. What was generated is still shown, and its delivery confirmed. */
    end() {
        this.want("end");
    }
    /** Leave at once, without a further event. The server keeps the session for a while, then ends it. */
    close() {
        this.post({ type: "close" });
        this.hasEnded = true;
    }
    want(wish) {
        this.post({ type: "wish", wish });
    }
    post(message) {
        if (!this.hasEnded)
            this.worker.postMessage(message);
    }
    receive(message) {
        if (this.hasEnded)
            return;
        switch (message.type) {
            case "phase":
                this.events.phase?.(message.phase);
                break;
            case "connected":
                this.hello = message.hello;
                if (message.numConnections > 1)
                    this.repeatKeys();
                this.events.connected?.(message.hello, message.numConnections);
                break;
            case "state":
                this.events.state?.(message.state);
                break;
            case "carrier":
                this.channel?.giveUp();
                this.events.carrier?.(message.carrier, message.why);
                break;
            case "frame":
                this.keys.confirm(message.frame.controlId);
                if (this.events.frame)
                    this.events.frame(message.frame);
                else
                    message.frame.picture?.close();
                break;
            case "token-needed":
                void this.renewToken().then((token) => this.post({ type: "token", token }));
                break;
            case "ended":
                this.hasEnded = true;
                this.events.ended?.(message.outcome, message.error);
                break;
        }
    }
    repeatKeys() {
        const snapshot = this.keys.snapshot();
        if (snapshot !== null)
            this.control(snapshot);
    }
    fail(cause) {
        if (this.hasEnded)
            return;
        this.hasEnded = true;
        this.worker.terminate();
        const outcome = { delivered: null, state: "failed", reason: "internal", lastSeq: 0, decodedCount: 0 };
        this.events.ended?.(outcome, new IthakaError("internal", `The player failed: ${cause}.`));
    }
}
