import type { Carrier } from "./carrier.js";
import { ChannelRelay } from "./channel-relay.js";
import { systemClock } from "./clock.js";
import { apiErrorOf, ConnectionLostError, IthakaError, ProtocolError, UnsupportedError } from "./errors.js";
import { type LiveCarrier, LiveSession } from "./live-session.js";
import { Session, type SessionEvents, type SessionInfo } from "./session.js";
import type { Takeover } from "./takeover.js";
import { LiveVideo } from "./live-video.js";

/** What can be served. Size and rate are null until the model was ready once. */
export interface ModelInfo {
  readonly name: string;
  readonly state: string;
  readonly message: string;
  readonly width: number | null;
  readonly height: number | null;
  readonly fps: number | null;
  readonly controls: readonly string[];
  readonly takesPrompt: boolean;
  readonly takesPointer: boolean;
}

export interface ClientOptions {
  /** Where the daemon asks for one. */
  readonly apiKey?: string | undefined;
  readonly timeoutMs?: number;
}

export interface CreateOptions {
  readonly model: string;
  readonly seed?: number | undefined;
  readonly prompt?: string;
  /** "lossy": H.264 close to the source; "exact": the model's samples bit for bit. */
  readonly pixels?: "lossy" | "exact";
  /** "media" runs at the model's rate, "unpaced" as fast as the window allows. */
  readonly pacing?: "media" | "unpaced";
  readonly windowFrames?: number;
  readonly maxFrames?: number;
  readonly options?: Readonly<Record<string, unknown>>;
  /** "datachannel" tries WebRTC's, and a WebSocket where it does not come up, or breaks. Nothing is lost on either. */
  readonly carrier?: Extract<Carrier, "websocket" | "datachannel">;
  /** How long the data channel may take, from when the session has its place. */
  readonly webRtcTimeoutMs?: number;
  /** Frames are shown here, in a worker; without one `frame` events carry VideoFrames. A canvas serves one session. */
  readonly canvas?: HTMLCanvasElement;
  readonly events: SessionEvents;
  /** Bounds queueing and start. */
  readonly connectTimeoutMs?: number;
  /** Bounds each outage. */
  readonly resumeTimeoutMs?: number;
}

export interface LiveOptions {
  readonly model: string;
  readonly seed?: number | undefined;
  readonly prompt?: string;
  readonly maxFrames?: number;
  readonly options?: Readonly<Record<string, unknown>>;
  /** Shows the picture while WebRTC carries it. */
  readonly video: HTMLVideoElement;
  /** Shows it where WebRTC does not come up, or breaks. */
  readonly canvas: HTMLCanvasElement;
  readonly events: SessionEvents;
  /** How long WebRTC may take, from when the session has its place. */
  readonly webRtcTimeoutMs?: number;
  /** "websocket" does not try WebRTC. */
  readonly carrier?: LiveCarrier;
}

export interface WatchOptions {
  readonly sessionId: string;
  /** A viewer's; without one it is asked for with the API key. */
  readonly token?: string | undefined;
  /** Shows a live session while WebRTC carries it. */
  readonly video?: HTMLVideoElement;
  readonly canvas: HTMLCanvasElement;
  readonly events: LiveOptions["events"];
  readonly webRtcTimeoutMs?: number;
}

type Role = "controller" | "viewer";
/** What opening a session needs of the wishes, whoever it is for. */
type Shown = Pick<
  CreateOptions,
  "canvas" | "events" | "pacing" | "carrier" | "webRtcTimeoutMs" | "connectTimeoutMs" | "resumeTimeoutMs"
>;
type LiveShown = Pick<LiveOptions, "video" | "canvas" | "events" | "webRtcTimeoutMs" | "carrier">;

const TIMEOUT_MS = 10_000;
const CONNECT_TIMEOUT_MS = 360_000;
const RESUME_TIMEOUT_MS = 90_000;

/** The way in: models and sessions of one daemon. `baseUrl` like "https://host/" or a page's own address. */
export class Client {
  constructor(
    private readonly baseUrl: string | URL,
    private readonly options: ClientOptions = {},
  ) {}

  async models(): Promise<ModelInfo[]> {
    const answer = await this.call("GET", "/v1/models");
    const models = answer["models"];
    if (!Array.isArray(models)) throw new ProtocolError("GET /v1/models: the answer has no list of models");
    return models.map((model) => readModel(model as Record<string, unknown>));
  }

  /** Throws ApiError, ConnectionLostError, UnsupportedError. */
  async createSession(options: CreateOptions): Promise<Session> {
    requireWebCodecs();
    const answer = await this.call("POST", "/v1/sessions", {
      ...wishOf(options),
      pixels: options.pixels,
      pacing: options.pacing,
      window_frames: options.windowFrames,
    });
    if (options.carrier !== "datachannel") options.events.carrier?.("websocket", null);
    return this.open(answer, options, "controller", false);
  }

  /**
   * A session with the lowest latency, in which frames may be lost: by WebRTC in `video`, or, where that does not come up in
   * time or breaks later, by WebSocket in `canvas`. Throws as `createSession`.
   */
  async createLiveSession(options: LiveOptions): Promise<LiveSession> {
    if (options.carrier === "websocket") requireWebCodecs();
    const answer = await this.call("POST", "/v1/sessions", { ...wishOf(options), delivery: "live" });
    return this.openLive(answer, options, "controller");
  }

  /** Look at a session that another page steers. A live one comes by WebRTC where it can. Throws as `createSession`. */
  async watch(options: WatchOptions): Promise<Session | LiveSession> {
    requireWebCodecs();
    const { sessionId, video } = options;
    const token = options.token ?? (await this.viewerToken(sessionId));
    const seen = await this.call("GET", sessionPath(sessionId), undefined, token);
    const answer = { ...seen, token };
    const isLive = seen["delivery"] === "live";
    if (isLive && video !== undefined) return this.openLive(answer, { ...options, video }, "viewer");
    options.events.carrier?.("websocket", null);
    return this.open(answer, options, "viewer", isLive);
  }

  /** For one that may look at this session and no more. */
  viewerToken(sessionId: string): Promise<string> {
    return this.mintToken(sessionId, "viewer");
  }

  private openLive(answer: Record<string, unknown>, options: LiveShown, role: Role): LiveSession {
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
      openTrack:
        options.carrier === "websocket" ? null : (events) => LiveVideo.open({ ...common, deadlineMs, video: options.video, events }),
      openSocket: (events, takeover) => {
        requireWebCodecs();
        return this.open(answer, { canvas: options.canvas, events }, role, true, takeover);
      },
    });
  }

  private open(
    answer: Record<string, unknown>,
    options: Shown,
    role: Role,
    isLive: boolean,
    takeover: Takeover | null = null,
  ): Session {
    const info = readSession(answer);
    const sessionUrl = this.url(sessionPath(info.id)).href;
    const token = tokenOf(answer);
    const resumeTimeoutMs = options.resumeTimeoutMs ?? RESUME_TIMEOUT_MS;
    const openChannel = (): ChannelRelay =>
      new ChannelRelay({
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
  async deleteSession(id: string, { force = false } = {}): Promise<void> {
    await this.call("DELETE", sessionPath(id) + (force ? "?force=true" : ""));
  }

  private async mintToken(id: string, role: Role): Promise<string> {
    const token = tokenOf(await this.call("POST", `${sessionPath(id)}/token`, { role }));
    if (token === null) throw new ProtocolError("POST token: the answer has no token");
    return token;
  }

  private async call(
    method: string,
    path: string,
    body?: Record<string, unknown>,
    token = this.options.apiKey,
  ): Promise<Record<string, unknown>> {
    const headers: Record<string, string> = {};
    if (token) headers["Authorization"] = `Bearer ${token}`;
    if (body) headers["Content-Type"] = "application/json";
    let response: Response;
    try {
      const signal = AbortSignal.timeout(this.options.timeoutMs ?? TIMEOUT_MS);
      // A page that is being left may still end its session.
      const keepalive = method === "DELETE";
      response = await fetch(this.url(path), { method, headers, signal, keepalive, body: body ? JSON.stringify(body) : null });
    } catch (error) {
      const isLate = error instanceof DOMException && error.name === "TimeoutError";
      throw isLate
        ? new ConnectionLostError(`${method} ${path}: no answer in time.`, "request_timeout")
        : new ConnectionLostError("The daemon can't be reached. Is it running?", "connect_failed");
    }
    const answer: unknown = await response.json().catch(() => null);
    const fields = typeof answer === "object" && answer !== null ? (answer as Record<string, unknown>) : {};
    if (!response.ok) throw apiErrorOf(response, answer);
    return fields;
  }

  private url(path: string): URL {
    return new URL(path, this.baseUrl);
  }

  private streamUrl(path: string): string {
    const url = this.url(path);
    url.protocol = url.protocol === "https:" ? "wss:" : "ws:";
    return url.href;
  }
}

function wishOf(options: CreateOptions | LiveOptions): Record<string, unknown> {
  return {
    model: options.model,
    seed: options.seed,
    prompt: options.prompt,
    max_frames: options.maxFrames,
    options: options.options,
  };
}

function nullIfRefused(error: unknown): null {
  if (error instanceof IthakaError) return null;
  throw error;
}

function tokenOf(answer: Record<string, unknown>): string | null {
  return typeof answer["token"] === "string" ? answer["token"] : null;
}

function requireWebCodecs(): void {
  if (!globalThis.isSecureContext) {
    throw new UnsupportedError(
      "Browsers decode video only on secure pages: open this one over https, or as 127.0.0.1 or localhost on this machine.",
    );
  }
  if (!("VideoDecoder" in globalThis) || !("OffscreenCanvas" in globalThis)) {
    throw new UnsupportedError("This browser has no WebCodecs. Recent versions of Chrome, Edge, Safari and Firefox do.");
  }
}

function sessionPath(id: string): string {
  return `/v1/sessions/${encodeURIComponent(id)}`;
}

function readModel(model: Record<string, unknown>): ModelInfo {
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

function readSession(session: Record<string, unknown>): SessionInfo {
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

function numberOrNull(value: unknown): number | null {
  return typeof value === "number" ? value : null;
}
