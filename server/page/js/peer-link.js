import { delaysMs } from "./backoff.js";
import { apiErrorOf, ConnectionLostError, IthakaError } from "./errors.js";
import { PROBE } from "./protocol.js";
import { SilenceWatch } from "./silence.js";
/** How long WebRTC may take to come up before something else is tried. */
export const ICE_DEADLINE_MS = 3_000;
/**
 * A connection over which nothing has come this long, though the server was asked, is dead; so is one by which nothing gets to the
 * server: it would show pictures until the server waits for the acknowledgements. Browsers notice after five seconds and more; with
 * what follows, another carrier shows its first picture within three.
 */
const LONGEST_SILENCE_MS = 1_750;
const GIVE_UP_TIMEOUT_MS = 5_000;
/** One WebRTC connection to the server with a reliable data channel: opened, spoken over, lost. It never comes back. */
export class PeerLink {
    options;
    listener;
    peer;
    channel;
    silence;
    abort = new AbortController();
    address = null;
    numFrameParts = 0;
    isLost = false;
    /** Throws ConnectionLostError where this browser has no WebRTC. */
    constructor(options, listener) {
        this.options = options;
        this.listener = listener;
        try {
            this.peer = new RTCPeerConnection();
        }
        catch (error) {
            throw failure(error);
        }
        this.channel = this.peer.createDataChannel("ithaka");
        this.channel.binaryType = "arraybuffer";
        this.channel.onmessage = ({ data }) => {
            if (typeof data !== "string")
                this.numFrameParts += 1;
            this.listener.onMessage(data);
        };
        this.silence = new SilenceWatch({
            clock: options.clock,
            longestMs: LONGEST_SILENCE_MS,
            readCounts: () => this.readCounts(),
            // Each message is acknowledged below the protocol.
            ask: () => this.send(PROBE),
            onSilent: () => this.lose("WebRTC fell silent."),
            onUnheard: () => this.lose("Nothing gets to the server by WebRTC any more."),
        });
    }
    /**
     * Returns when media can flow. Throws ConnectionLostError, with the reason, when that takes longer than the deadline or `close`
     * comes first.
     */
    async connect() {
        const { clock, deadlineMs } = this.options;
        const { signal } = this.abort;
        let cancelDeadline = () => { };
        const gaveUp = new Promise((_, reject) => {
            const late = new ConnectionLostError("WebRTC did not come up in time.", "webrtc_timeout");
            cancelDeadline = clock.after(deadlineMs ?? ICE_DEADLINE_MS, () => reject(late));
            signal.addEventListener("abort", () => reject(new ConnectionLostError("WebRTC was given up.", "webrtc_failed")));
        });
        try {
            await Promise.race([this.negotiate(signal), gaveUp]);
        }
        catch (error) {
            this.close();
            throw error instanceof IthakaError ? error : failure(error);
        }
        finally {
            cancelDeadline();
        }
        this.peer.onconnectionstatechange = () => {
            if (this.peer.connectionState === "failed")
                this.lose("The WebRTC connection failed.");
        };
        this.channel.onclose = () => this.lose("The WebRTC connection was closed.");
        this.silence.start();
    }
    /** Ignored unless it is open. */
    send(text) {
        if (this.channel.readyState === "open")
            this.channel.send(text);
    }
    /** Leave without a further word to the listener. */
    close() {
        this.stop();
        this.abort.abort();
        this.peer.close();
    }
    /**
     * After `onLost`: tell the server, which may not have noticed, that this connection is gone, so that another may take its place;
     * again and again while nobody answers, for `timeoutMs`.
     */
    async giveUp(timeoutMs) {
        const { clock } = this.options;
        const giveUpAt = clock.now() + timeoutMs;
        for (const delayMs of delaysMs(Math.random)) {
            if (this.address === null || clock.now() >= giveUpAt)
                return;
            try {
                await this.call("DELETE", this.address, AbortSignal.timeout(GIVE_UP_TIMEOUT_MS));
                return;
            }
            catch (error) {
                // Refused is answered: the connection is not there any more.
                if (error instanceof IthakaError)
                    return;
            }
            await new Promise((resolve) => clock.after(delayMs, resolve));
        }
    }
    async negotiate(signal) {
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
            void this.call("PATCH", address, signal, { sdp_fragment: fragment }).catch(() => { });
        };
        this.peer.onicecandidate = ({ candidate }) => {
            if (candidate?.candidate)
                waiting.push(candidate.candidate);
            trickle();
        };
        const { ice_servers: servers } = await this.call("GET", "/webrtc", signal);
        this.peer.setConfiguration({ iceServers: readIceServers(servers) });
        await this.peer.setLocalDescription(await this.peer.createOffer());
        const body = { type: "offer", sdp: this.peer.localDescription?.sdp };
        const answer = await this.call("POST", "/webrtc", signal, body);
        this.address = `/webrtc/${encodeURIComponent(String(answer["id"]))}`;
        trickle();
        await this.peer.setRemoteDescription({ type: "answer", sdp: String(answer["sdp"]) });
        await open;
    }
    lose(why) {
        if (this.isLost)
            return;
        this.stop();
        this.listener.onLost(why);
    }
    stop() {
        this.isLost = true;
        this.silence.stop();
        this.channel.onclose = this.channel.onmessage = null;
        this.peer.onconnectionstatechange = null;
    }
    /** Packets of every kind, and the checks of ICE among them, which a browser answers by itself; 0 where it does not count them. */
    async readCounts() {
        let [packetBytes, questions, answers] = [0, 0, 0];
        for (const stat of (await this.peer.getStats()).values()) {
            if (stat["type"] !== "candidate-pair")
                continue;
            packetBytes += Number(stat["bytesReceived"] ?? 0);
            questions += Number(stat["requestsReceived"] ?? 0);
            answers += Number(stat["responsesReceived"] ?? 0);
        }
        return { received: packetBytes + questions + answers, questions, answers: answers + this.numFrameParts };
    }
    async call(method, path, signal, body) {
        const { sessionUrl, token } = this.options;
        const headers = {};
        if (token !== null)
            headers["Authorization"] = `Bearer ${token}`;
        if (body)
            headers["Content-Type"] = "application/json";
        const response = await fetch(sessionUrl + path, { method, headers, signal, body: body ? JSON.stringify(body) : null });
        const answer = (await response.json().catch(() => ({})));
        if (response.ok)
            return answer;
        throw apiErrorOf(response, answer);
    }
}
function failure(error) {
    return new ConnectionLostError(`WebRTC can't be used: ${String(error)}`, "webrtc_failed");
}
function readIceServers(servers) {
    if (!Array.isArray(servers))
        return [];
    return servers.map((server) => ({
        urls: server["urls"].map(String),
        ...(server["username"] ? { username: String(server["username"]), credential: String(server["credential"]) } : {}),
    }));
}
