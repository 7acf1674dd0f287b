import { ConnectionLostError, reportOf, StreamError, UsageError } from "./errors.js";
import { HeldKeys } from "./held-keys.js";
import { PeerLink } from "./peer-link.js";
import { buildControl, buildFin, buildPong, buildResume, buildWish, parseMessage, } from "./protocol.js";
/** More pictures than can be on their way. */
const MAX_NUMBERS = 256;
/** A live session in a video element: the picture comes as a WebRTC track, messages go over a data channel. */
export class LiveVideo {
    options;
    info;
    hello = null;
    link;
    numbers = new Map();
    finalState = null;
    lastSeq = 0;
    lastControlId = 0;
    keys = new HeldKeys();
    wish = null;
    said = null;
    hasEnded = false;
    constructor(options) {
        this.options = options;
        this.info = options.info;
        this.link = new PeerLink(options, { onMessage: (data) => this.receive(data), onLost: (why) => this.finish(why) });
        const { peer } = this.link;
        const transceiver = peer.addTransceiver("video", { direction: "recvonly" });
        const codecs = RTCRtpReceiver.getCapabilities("video")?.codecs ?? [];
        // VP8 costs the server one more encode: only where there is nothing else.
        const wanted = codecs.some(({ mimeType }) => /\/h264$/i.test(mimeType)) ? /\/(h264|rtx)$/i : /\/(vp8|rtx)$/i;
        transceiver.setCodecPreferences?.(codecs.filter(({ mimeType }) => wanted.test(mimeType)));
        peer.ontrack = ({ track, receiver }) => {
            // Every picture is the newest one: nothing is gained by holding it back.
            if ("jitterBufferTarget" in receiver)
                receiver.jitterBufferTarget = 0;
            this.options.video.srcObject = new MediaStream([track]);
            void this.options.video.play().catch(() => { });
        };
    }
    /** Returns when media can flow. Throws ConnectionLostError, with the reason, when that takes longer than the deadline. */
    static async open(options) {
        const opened = new LiveVideo(options);
        await opened.link.connect();
        return opened;
    }
    /** Which frame a picture of the video element is, by the `rtpTimestamp` of its frame callback; only in VP8, and soon forgotten. */
    frameAt(rtpTimestamp) {
        return this.numbers.get(rtpTimestamp) ?? null;
    }
    /** Returns the control's id. Throws UsageError before `connected`. */
    control(change) {
        if (this.hello === null)
            throw new UsageError("The session is not connected yet.");
        if (this.hello.role === "viewer")
            throw new UsageError("A viewer steers nothing.");
        this.lastControlId += 1;
        this.keys.apply(this.lastControlId, change);
        this.link.send(buildControl(this.lastControlId, change));
        return this.lastControlId;
    }
    pause() {
        this.want("pause");
    }
    play() {
        this.want("play");
    }
    /** Generate no more. */
    end() {
        this.want("end");
    }
    /** Leave at once, without a further event. The last picture stays. */
    close() {
        this.hasEnded = true;
        // A video element that plays shows black once its track has ended.
        this.options.video.pause();
        this.link.close();
    }
    /** After `lost`: give the place back, see `PeerLink.giveUp`. Returns what another carrier has to know. */
    async giveUp(timeoutMs) {
        const picture = pictureOf(this.options.video);
        await this.link.giveUp(timeoutMs);
        return { hello: this.hello, keys: this.keys, lastControlId: this.lastControlId, wish: this.wish, picture };
    }
    receive(data) {
        if (typeof data !== "string")
            return;
        try {
            this.handle(data);
        }
        catch (error) {
            this.said = reportOf(error);
            this.finish();
        }
    }
    handle(text) {
        const message = parseMessage(text);
        switch (message.type) {
            case "hello":
                this.hello = message;
                this.link.send(buildResume(message.stream, message.nextSeq));
                this.options.events.connected?.(message);
                break;
            case "ping":
                this.link.send(buildPong(message.id));
                break;
            case "state":
                if (message.state === "closed" || message.state === "failed")
                    this.finalState = message;
                this.options.events.state?.(message);
                break;
            case "eos":
                this.lastSeq = message.lastSeq;
                // A track does not say which pictures were shown, so none is claimed.
                if (this.hello?.role === "controller")
                    this.link.send(buildFin(0, message.lastSeq));
                break;
            case "error":
                this.said = message;
                break;
            case "numbered":
                this.keys.confirm(message.controlId);
                this.numbers.set(message.rtpTimestamp, message);
                if (this.numbers.size > MAX_NUMBERS)
                    this.numbers.delete(this.numbers.keys().next().value);
                break;
            case "unknown":
                break;
        }
    }
    want(wish) {
        this.wish = wish;
        this.link.send(buildWish(wish));
    }
    /** `lost`: how the connection broke, where nothing was said of an end. */
    finish(lost = "The connection was lost.") {
        if (this.hasEnded)
            return;
        this.close();
        const state = this.finalState;
        if (state === null && this.said === null && this.options.events.lost !== undefined) {
            this.options.events.lost(reportOf(new ConnectionLostError(lost)));
            return;
        }
        const outcome = {
            delivered: state?.delivered ?? null,
            state: state?.state ?? "closed",
            reason: state?.reason ?? this.said?.code ?? "connection_lost",
            lastSeq: this.lastSeq,
            decodedCount: 0,
        };
        const isRegular = state?.state === "closed" && this.said === null;
        const error = this.said
            ? new StreamError(this.said.code, this.said.message, this.said.retryable, 0)
            : new ConnectionLostError(lost);
        this.options.events.ended?.(outcome, isRegular ? null : reportOf(error));
    }
}
/** What the element shows; null where that is nothing. */
function pictureOf(video) {
    try {
        return new VideoFrame(video);
    }
    catch {
        return null;
    }
}
