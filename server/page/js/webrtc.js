import { delaysMs } from "./backoff.js";
import { apiErrorOf, ConnectionLostError, IthakaError, reportOf, StreamError, UsageError } from "./errors.js";
import { HeldKeys } from "./held-keys.js";
import { buildControl, buildFin, buildPong, buildResume, buildWish, parseMessage, } from "./protocol.js";
import { SilenceWatch } from "./silence.js";
/** How long WebRTC may take to come up before something else is tried. */
export const ICE_DEADLINE_MS = 3_000;
/** A connection that the browser doubts and over which nothing has come this long is dead. */
const LONGEST_SILENCE_MS = 3_000;
const GIVE_UP_TIMEOUT_MS = 5_000;
/** More pictures than can be on their way. */
const MAX_NUMBERS = 256;
/** A live session in a video element: the picture comes as a WebRTC track, messages go over a data channel. */
export class LiveVideo {
    options;
    info;
    hello = null;
    peer;
    channel;
    numbers = new Map();
    finalState = null;
    lastSeq = 0;
    lastControlId = 0;
    keys = new HeldKeys();
    wish = null;
    silence;
    address = null;
    said = null;
    hasEnded = false;
    constructor(options, iceServers) {
        this.options = options;
        this.info = options.info;
        this.peer = new RTCPeerConnection({ iceServers });
        this.silence = new SilenceWatch(options.clock, LONGEST_SILENCE_MS, () => this.countReceived(), () => this.finish("WebRTC fell silent."));
        this.channel = this.peer.createDataChannel("ithaka");
        const transceiver = this.peer.addTransceiver("video", { direction: "recvonly" });
        const codecs = RTCRtpReceiver.getCapabilities("video")?.codecs ?? [];
        // VP8 costs the server one more encode: only where there is nothing else.
        const wanted = codecs.some(({ mimeType }) => /\/h264$/i.test(mimeType)) ? /\/(h264|rtx)$/i : /\/(vp8|rtx)$/i;
        transceiver.setCodecPreferences?.(codecs.filter(({ mimeType }) => wanted.test(mimeType)));
        this.peer.ontrack = ({ track, receiver }) => {
            // Every picture is the newest one: nothing is gained by holding it back.
            if ("jitterBufferTarget" in receiver)
                receiver.jitterBufferTarget = 0;
            this.options.video.srcObject = new MediaStream([track]);
            void this.options.video.play().catch(() => { });
        };
    }
    /** Returns when media can flow. Throws ConnectionLostError, with the reason, when that takes longer than the deadline. */
    static async open(options) {
        const abort = new AbortController();
        let opened = null;
        let cancelDeadline = () => { };
        const deadline = new Promise((_, reject) => {
            cancelDeadline = options.clock.after(options.deadlineMs ?? ICE_DEADLINE_MS, () => reject(new ConnectionLostError("WebRTC did not come up in time.", "webrtc_timeout")));
        });
        const attempt = async () => {
            const { ice_servers: servers } = await call(options, "GET", "/webrtc", abort.signal);
            opened = new LiveVideo(options, readIceServers(servers));
            await opened.connect(abort.signal);
            return opened;
        };
        try {
            return await Promise.race([attempt(), deadline]);
        }
        catch (error) {
            abort.abort();
            opened?.close();
            if (error instanceof IthakaError)
                throw error;
            throw new ConnectionLostError(`WebRTC can't be used: ${String(error)}`, "webrtc_failed");
        }
        finally {
            cancelDeadline();
        }
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
        this.send(buildControl(this.lastControlId, change));
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
        this.silence.stop();
        this.channel.onclose = this.channel.onmessage = null;
        this.peer.close();
    }
    /**
     * After `lost`: tell the server, which may not have noticed, that this connection is gone, so that another may take its place;
     * again and again while nobody answers, for `timeoutMs`. Returns what the other has to know.
     */
    async giveUp(timeoutMs) {
        const { clock } = this.options;
        const giveUpAt = clock.now() + timeoutMs;
        for (const delayMs of delaysMs(Math.random)) {
            if (this.address === null || clock.now() >= giveUpAt)
                break;
            try {
                await call(this.options, "DELETE", this.address, AbortSignal.timeout(GIVE_UP_TIMEOUT_MS));
                break;
            }
            catch (error) {
                // Refused is answered: the connection is not there any more.
                if (error instanceof IthakaError)
                    break;
            }
            await new Promise((resolve) => clock.after(delayMs, resolve));
        }
        return { hello: this.hello, keys: this.keys, lastControlId: this.lastControlId, wish: this.wish };
    }
    async connect(signal) {
        const open = new Promise((resolve, reject) => {
            this.channel.onopen = () => resolve();
            this.peer.onconnectionstatechange = () => {
                if (this.peer.connectionState === "failed")
                    reject(new ConnectionLostError("ICE failed.", "webrtc_failed"));
            };
        });
        // What is told before the answer is there has to wait for its address.
        const waiting = [];
        const trickle = () => {
            const { address } = this;
            if (address === null || waiting.length === 0)
                return;
            const lines = waiting.splice(0).map((candidate) => `a=${candidate}`);
            const fragment = ["a=mid:0", ...lines, ""].join("\r\n");
            void call(this.options, "PATCH", address, signal, { sdp_fragment: fragment }).catch(() => { });
        };
        this.peer.onicecandidate = ({ candidate }) => {
            if (candidate?.candidate)
                waiting.push(candidate.candidate);
            trickle();
        };
        this.channel.onmessage = ({ data }) => this.receive(data);
        this.channel.onclose = () => this.finish("The WebRTC connection was closed.");
        await this.peer.setLocalDescription(await this.peer.createOffer());
        const body = { type: "offer", sdp: this.peer.localDescription?.sdp };
        const answer = await call(this.options, "POST", "/webrtc", signal, body);
        this.address = `/webrtc/${encodeURIComponent(String(answer["id"]))}`;
        trickle();
        await this.peer.setRemoteDescription({ type: "answer", sdp: String(answer["sdp"]) });
        await open;
        this.peer.onconnectionstatechange = () => this.judgeConnection();
        this.judgeConnection();
    }
    judgeConnection() {
        switch (this.peer.connectionState) {
            case "failed":
                this.finish("The WebRTC connection failed.");
                break;
            case "disconnected":
                // It may come back by itself, and often does.
                this.silence.start();
                break;
            default:
                this.silence.stop();
        }
    }
    /** Packets of every kind, answers to the browser's own checks too. */
    async countReceived() {
        let count = 0;
        for (const stat of (await this.peer.getStats()).values()) {
            if (stat["type"] !== "candidate-pair")
                continue;
            for (const name of ["bytesReceived", "responsesReceived", "requestsReceived"])
                count += Number(stat[name] ?? 0);
        }
        return count;
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
                this.send(buildResume(message.stream, message.nextSeq));
                this.options.events.connected?.(message);
                break;
            case "ping":
                this.send(buildPong(message.id));
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
                    this.send(buildFin(0, message.lastSeq));
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
        this.send(buildWish(wish));
    }
    send(text) {
        if (this.channel.readyState === "open")
            this.channel.send(text);
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
async function call(options, method, path, signal, body) {
    const headers = {};
    if (options.token !== null)
        headers["Authorization"] = `Bearer ${options.token}`;
    if (body)
        headers["Content-Type"] = "application/json";
    const response = await fetch(options.sessionUrl + path, { method, headers, signal, body: body ? JSON.stringify(body) : null });
    const answer = (await response.json().catch(() => ({})));
    if (response.ok)
        return answer;
    throw apiErrorOf(response, answer);
}
function readIceServers(servers) {
    if (!Array.isArray(servers))
        return [];
    return servers.map((server) => ({
        urls: server["urls"].map(String),
        ...(server["username"] ? { username: String(server["username"]), credential: String(server["credential"]) } : {}),
    }));
}
