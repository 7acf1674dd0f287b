import { ChannelRelay } from "./channel-relay.js";
import { systemClock } from "./clock.js";
import { apiErrorOf, ConnectionLostError, IthakaError, ProtocolError, UnsupportedError } from "./errors.js";
import { LiveSession } from "./live-session.js";
import { Session } from "./session.js";
import { LiveVideo } from "./live-video.js";
const TIMEOUT_MS = 10_000;
const CONNECT_TIMEOUT_MS = 360_000;
const RESUME_TIMEOUT_MS = 90_000;
/** The way in: models and sessions of one daemon. `baseUrl` like "https://host/" or a page's own address. */
export class Client {
    baseUrl;
    options;
    constructor(baseUrl, options = {}) {
        this.baseUrl = baseUrl;
        this.options = options;
    }
    async models() {
        const answer = await this.call("GET", "/v1/models");
        const models = answer["models"];
        if (!Array.isArray(models))
            throw new ProtocolError("GET /v1/models: the answer has no list of models");
        return models.map((model) => readModel(model));
    }
    /** Throws ApiError, ConnectionLostError, UnsupportedError. */
    async createSession(options) {
        requireWebCodecs();
        const answer = await this.call("POST", "/v1/sessions", {
            ...wishOf(options),
            pixels: options.pixels,
            pacing: options.pacing,
            window_frames: options.windowFrames,
        });
        if (options.carrier !== "datachannel")
            options.events.carrier?.("websocket", null);
        return this.open(answer, options, "controller", false);
    }
    /**
     * A session with the lowest latency, in which frames may be lost: by WebRTC in `video`, or, where that does not come up in
     * time or breaks later, by WebSocket in `canvas`. Throws as `createSession`.
     */
    async createLiveSession(options) {
        if (options.carrier === "websocket")
            requireWebCodecs();
        const answer = await this.call("POST", "/v1/sessions", { ...wishOf(options), delivery: "live" });
        return this.openLive(answer, options, "controller");
    }
    /** Look at a session that another page steers. A live one comes by WebRTC where it can. Throws as `createSession`. */
    async watch(options) {
        requireWebCodecs();
        const { sessionId, video } = options;
        const token = options.token ?? (await this.viewerToken(sessionId));
        const seen = await this.call("GET", sessionPath(sessionId), undefined, token);
        const answer = { ...seen, token };
        const isLive = seen["delivery"] === "live";
        if (isLive && video !== undefined)
            return this.openLive(answer, { ...options, video }, "viewer");
        options.events.carrier?.("websocket", null);
        return this.open(answer, options, "viewer", isLive);
    }
    /** For one that may look at this session and no more. */
    viewerToken(sessionId) {
        return this.mintToken(sessionId, "viewer");
    }
    openLive(answer, options, role) {
        const info = readSession(answer);
        const sessionUrl = this.url(sessionPath(info.id)).href;
        const token = tokenOf(answer);
        const common = { info, sessionUrl, token, clock: systemClock };
        const deadlineMs = options.webRtcTimeoutMs;
        return new LiveSession({
            ...common,
            random: Math.random,
            events: options.events,
            resumeTimeoutMs: RESUME_TIMEOUT_MS,
            openTrack: options.carrier === "websocket" ? null : (events) => LiveVideo.open({ ...common, deadlineMs, video: options.video, events }),
            openSocket: (events, takeover) => {
                requireWebCodecs();
                return this.open(answer, { canvas: options.canvas, events }, role, true, takeover);
            },
        });
    }
    open(answer, options, role, isLive, takeover = null) {
        const info = readSession(answer);
        const sessionUrl = this.url(sessionPath(info.id)).href;
        const token = tokenOf(answer);
        const resumeTimeoutMs = options.resumeTimeoutMs ?? RESUME_TIMEOUT_MS;
        const openChannel = () => new ChannelRelay({
            sessionUrl,
            token,
            clock: systemClock,
            random: Math.random,
            deadlineMs: options.webRtcTimeoutMs,
            isQueued: info.state === "queued",
            resumeTimeoutMs,
            onOpen: () => options.events.carrier?.("datachannel", null),
        });
        const channel = options.carrier === "datachannel" ? openChannel() : null;
        return new Session({
            info,
            worker: new Worker(new URL("./decoder-worker.js", import.meta.url), { type: "module", name: `ithaka ${info.id}` }),
            order: {
                type: "open",
                streamUrl: this.streamUrl(String(answer["stream_path"])),
                sessionUrl,
                token,
                canvas: options.canvas?.transferControlToOffscreen() ?? null,
                picture: takeover?.picture ?? null,
                channel: channel?.port ?? null,
                isPaced: !isLive && options.pacing !== "unpaced",
                isLive,
                isViewer: role === "viewer",
                isTakeover: takeover !== null,
                connectTimeoutMs: options.connectTimeoutMs ?? CONNECT_TIMEOUT_MS,
                resumeTimeoutMs,
            },
            events: options.events,
            renewToken: () => this.mintToken(info.id, role).catch(nullIfRefused),
            takeover,
            channel,
        });
    }
    /** Let a session drain, or close it at once. */
    async deleteSession(id, { force = false } = {}) {
        await this.call("DELETE", sessionPath(id) + (force ? "?force=true" : ""));
    }
    async mintToken(id, role) {
        const token = tokenOf(await this.call("POST", `${sessionPath(id)}/token`, { role }));
        if (token === null)
            throw new ProtocolError("POST token: the answer has no token");
        return token;
    }
    async call(method, path, body, token = this.options.apiKey) {
        const headers = {};
        if (token)
            headers["Authorization"] = `Bearer ${token}`;
        if (body)
            headers["Content-Type"] = "application/json";
        let response;
        try {
            const signal = AbortSignal.timeout(this.options.timeoutMs ?? TIMEOUT_MS);
            // A page that is being left may still end its session.
            const keepalive = method === "DELETE";
            response = await fetch(this.url(path), { method, headers, signal, keepalive, body: body ? JSON.stringify(body) : null });
        }
        catch (error) {
            const isLate = error instanceof DOMException && error.name === "TimeoutError";
            throw isLate
                ? new ConnectionLostError(`${method} ${path}: no answer in time.`, "request_timeout")
                : new ConnectionLostError("The daemon can't be reached. Is it running?", "connect_failed");
        }
        const answer = await response.json().catch(() => null);
        const fields = typeof answer === "object" && answer !== null ? answer : {};
        if (!response.ok)
            throw apiErrorOf(response, answer);
        return fields;
    }
    url(path) {
        return new URL(path, this.baseUrl);
    }
    streamUrl(path) {
        const url = this.url(path);
        url.protocol = url.protocol === "https:" ? "wss:" : "ws:";
        return url.href;
    }
}
function wishOf(options) {
    return {
        model: options.model,
        seed: options.seed,
        prompt: options.prompt,
        max_frames: options.maxFrames,
        options: options.options,
    };
}
function nullIfRefused(error) {
    if (error instanceof IthakaError)
        return null;
    throw error;
}
function tokenOf(answer) {
    return typeof answer["token"] === "string" ? answer["token"] : null;
}
function requireWebCodecs() {
    if (!globalThis.isSecureContext) {
        throw new UnsupportedError("Browsers decode video only on secure pages: open this one over https, or as 127.0.0.1 or localhost on this machine.");
    }
    if (!("VideoDecoder" in globalThis) || !("OffscreenCanvas" in globalThis)) {
        throw new UnsupportedError("This browser has no WebCodecs. Recent versions of Chrome, Edge, Safari and Firefox do.");
    }
}
function sessionPath(id) {
    return `/v1/sessions/${encodeURIComponent(id)}`;
}
function readModel(model) {
    return {
        name: String(model["name"]),
        state: String(model["state"]),
        message: String(model["message"] ?? ""),
        width: numberOrNull(model["width"]),
        height: numberOrNull(model["height"]),
        fps: numberOrNull(model["fps"]),
        controls: Array.isArray(model["controls"]) ? model["controls"].map(String) : [],
        takesPrompt: model["takes_prompt"] === true,
        takesPointer: model["takes_pointer"] === true,
    };
}
function readSession(session) {
    if (typeof session["id"] !== "string" || typeof session["stream_path"] !== "string") {
        throw new ProtocolError("POST /v1/sessions: the answer is no session");
    }
    return {
        id: session["id"],
        state: String(session["state"]),
        model: String(session["model"]),
        seed: Number(session["seed"]),
        prompt: String(session["prompt"]),
        width: Number(session["width"]),
        height: Number(session["height"]),
        fps: Number(session["fps"]),
        queuePosition: numberOrNull(session["queue_position"]),
    };
}
function numberOrNull(value) {
    return typeof value === "number" ? value : null;
}
