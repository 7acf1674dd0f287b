import { delaysMs } from "./backoff.js";
import type { Clock } from "./clock.js";
import { apiErrorOf, ConnectionLostError, type ErrorReport, IthakaError, reportOf, StreamError, UsageError } from "./errors.js";
import { HeldKeys } from "./held-keys.js";
import {
  buildControl,
  buildFin,
  buildPong,
  buildResume,
  buildWish,
  type ControlChange,
  type Hello,
  type Numbered,
  parseMessage,
  type StateChanged,
  type Wish,
} from "./protocol.js";
import type { SessionInfo } from "./session.js";
import { SilenceWatch } from "./silence.js";
import type { Outcome } from "./stream.js";
import type { Takeover } from "./takeover.js";

/** How long WebRTC may take to come up before something else is tried. */
export const ICE_DEADLINE_MS = 3_000;

/** A connection that the browser doubts and over which nothing has come this long is dead. */
const LONGEST_SILENCE_MS = 3_000;
const GIVE_UP_TIMEOUT_MS = 5_000;

/** More pictures than can be on their way. */
const MAX_NUMBERS = 256;

export interface LiveEvents {
  connected?(hello: Hello): void;
  state?(state: StateChanged): void;
  /** The last event. `error` is null after a regular end. */
  ended?(outcome: Outcome, error: ErrorReport | null): void;
  /** The connection broke, and the session did not: another carrier may go on with it, see `giveUp`. The last event otherwise. */
  lost?(error: ErrorReport): void;
}

export interface LiveOptions {
  readonly info: SessionInfo;
  /** Of the session, e.g. "https://host/v1/sessions/abc". */
  readonly sessionUrl: string;
  readonly token: string | null;
  readonly video: HTMLVideoElement;
  readonly events: LiveEvents;
  readonly clock: Clock;
  readonly deadlineMs?: number;
}

/** A live session in a video element: the picture comes as a WebRTC track, messages go over a data channel. */
export class LiveVideo {
  readonly info: SessionInfo;
  hello: Hello | null = null;
  private readonly peer: RTCPeerConnection;
  private readonly channel: RTCDataChannel;
  private readonly numbers = new Map<number, Numbered>();
  private finalState: StateChanged | null = null;
  private lastSeq = 0;
  private lastControlId = 0;
  private readonly keys = new HeldKeys();
  private wish: Wish | null = null;
  private readonly silence: SilenceWatch;
  private address: string | null = null;
  private said: ErrorReport | null = null;
  private hasEnded = false;

  private constructor(
    private readonly options: LiveOptions,
    iceServers: RTCIceServer[],
  ) {
    this.info = options.info;
    this.peer = new RTCPeerConnection({ iceServers });
    this.silence = new SilenceWatch(
      options.clock,
      LONGEST_SILENCE_MS,
      () => this.countReceived(),
      () => this.finish("WebRTC fell silent."),
    );
    this.channel = this.peer.createDataChannel("ithaka");
    const transceiver = this.peer.addTransceiver("video", { direction: "recvonly" });
    const codecs = RTCRtpReceiver.getCapabilities("video")?.codecs ?? [];
    // VP8 costs the server one more encode: only where there is nothing else.
    const wanted = codecs.some(({ mimeType }) => /\/h264$/i.test(mimeType)) ? /\/(h264|rtx)$/i : /\/(vp8|rtx)$/i;
    transceiver.setCodecPreferences?.(codecs.filter(({ mimeType }) => wanted.test(mimeType)));
    this.peer.ontrack = ({ track, receiver }) => {
      // Every picture is the newest one: nothing is gained by holding it back.
      if ("jitterBufferTarget" in receiver) receiver.jitterBufferTarget = 0;
      this.options.video.srcObject = new MediaStream([track]);
      void this.options.video.play().catch(() => {});
    };
  }

  /** Returns when media can flow. Throws ConnectionLostError, with the reason, when that takes longer than the deadline. */
  static async open(options: LiveOptions): Promise<LiveVideo> {
    const abort = new AbortController();
    let opened: LiveVideo | null = null;
    let cancelDeadline = (): void => {};
    const deadline = new Promise<never>((_, reject) => {
      cancelDeadline = options.clock.after(options.deadlineMs ?? ICE_DEADLINE_MS, () =>
        reject(new ConnectionLostError("WebRTC did not come up in time.", "webrtc_timeout")),
      );
    });
    const attempt = async (): Promise<LiveVideo> => {
      const { ice_servers: servers } = await call(options, "GET", "/webrtc", abort.signal);
      opened = new LiveVideo(options, readIceServers(servers));
      await opened.connect(abort.signal);
      return opened;
    };
    try {
      return await Promise.race([attempt(), deadline]);
    } catch (error) {
      abort.abort();
      (opened as LiveVideo | null)?.close();
      if (error instanceof IthakaError) throw error;
      throw new ConnectionLostError(`WebRTC can't be used: ${String(error)}`, "webrtc_failed");
    } finally {
      cancelDeadline();
    }
  }

  /** Which frame a picture of the video element is, by the `rtpTimestamp` of its frame callback; only in VP8, and soon forgotten. */
  frameAt(rtpTimestamp: number): Numbered | null {
    return this.numbers.get(rtpTimestamp) ?? null;
  }

  /** Returns the control's id. Throws UsageError before `connected`. */
  control(change: ControlChange): number {
    if (this.hello === null) throw new UsageError("The session is not connected yet.");
    if (this.hello.role === "viewer") throw new UsageError("A viewer steers nothing.");
    this.lastControlId += 1;
    this.keys.apply(this.lastControlId, change);
    this.send(buildControl(this.lastControlId, change));
    return this.lastControlId;
  }

  pause(): void {
    this.want("pause");
  }

  play(): void {
    this.want("play");
  }

  /** Generate no more. */
  end(): void {
    this.want("end");
  }

  /** Leave at once, without a further event. The last picture stays. */
  close(): void {
    this.hasEnded = true;
    this.silence.stop();
    this.channel.onclose = this.channel.onmessage = null;
    this.peer.close();
  }

  /**
   * After `lost`: tell the server, which may not have noticed, that this connection is gone, so that another may take its place;
   * again and again while nobody answers, for `timeoutMs`. Returns what the other has to know.
   */
  async giveUp(timeoutMs: number): Promise<Takeover> {
    const { clock } = this.options;
    const giveUpAt = clock.now() + timeoutMs;
    for (const delayMs of delaysMs(Math.random)) {
      if (this.address === null || clock.now() >= giveUpAt) break;
      try {
        await call(this.options, "DELETE", this.address, AbortSignal.timeout(GIVE_UP_TIMEOUT_MS));
        break;
      } catch (error) {
        // Refused is answered: the connection is not there any more.
        if (error instanceof IthakaError) break;
      }
      await new Promise<void>((resolve) => clock.after(delayMs, resolve));
    }
    return { hello: this.hello, keys: this.keys, lastControlId: this.lastControlId, wish: this.wish };
  }

  private async connect(signal: AbortSignal): Promise<void> {
    const open = new Promise<void>((resolve, reject) => {
      this.channel.onopen = () => resolve();
      this.peer.onconnectionstatechange = () => {
        if (this.peer.connectionState === "failed") reject(new ConnectionLostError("ICE failed.", "webrtc_failed"));
      };
    });
    // What is told before the answer is there has to wait for its address.
    const waiting: string[] = [];
    const trickle = (): void => {
      const { address } = this;
      if (address === null || waiting.length === 0) return;
      const lines = waiting.splice(0).map((candidate) => `a=${candidate}`);
      const fragment = ["a=mid:0", ...lines, ""].join("\r\n");
      void call(this.options, "PATCH", address, signal, { sdp_fragment: fragment }).catch(() => {});
    };
    this.peer.onicecandidate = ({ candidate }) => {
      if (candidate?.candidate) waiting.push(candidate.candidate);
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

  private judgeConnection(): void {
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
  private async countReceived(): Promise<number> {
    let count = 0;
    for (const stat of (await this.peer.getStats()).values() as Iterable<Record<string, unknown>>) {
      if (stat["type"] !== "candidate-pair") continue;
      for (const name of ["bytesReceived", "responsesReceived", "requestsReceived"]) count += Number(stat[name] ?? 0);
    }
    return count;
  }

  private receive(data: unknown): void {
    if (typeof data !== "string") return;
    try {
      this.handle(data);
    } catch (error) {
      this.said = reportOf(error);
      this.finish();
    }
  }

  private handle(text: string): void {
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
        if (message.state === "closed" || message.state === "failed") this.finalState = message;
        this.options.events.state?.(message);
        break;
      case "eos":
        this.lastSeq = message.lastSeq;
        // A track does not say which pictures were shown, so none is claimed.
        if (this.hello?.role === "controller") this.send(buildFin(0, message.lastSeq));
        break;
      case "error":
        this.said = message;
        break;
      case "numbered":
        this.keys.confirm(message.controlId);
        this.numbers.set(message.rtpTimestamp, message);
        if (this.numbers.size > MAX_NUMBERS) this.numbers.delete(this.numbers.keys().next().value as number);
        break;
      case "unknown":
        break;
    }
  }

  private want(wish: Wish): void {
    this.wish = wish;
    this.send(buildWish(wish));
  }

  private send(text: string): void {
    if (this.channel.readyState === "open") this.channel.send(text);
  }

  /** `lost`: how the connection broke, where nothing was said of an end. */
  private finish(lost = "The connection was lost."): void {
    if (this.hasEnded) return;
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

async function call(
  options: LiveOptions,
  method: string,
  path: string,
  signal: AbortSignal,
  body?: Record<string, unknown>,
): Promise<Record<string, unknown>> {
  const headers: Record<string, string> = {};
  if (options.token !== null) headers["Authorization"] = `Bearer ${options.token}`;
  if (body) headers["Content-Type"] = "application/json";
  const response = await fetch(options.sessionUrl + path, { method, headers, signal, body: body ? JSON.stringify(body) : null });
  const answer = (await response.json().catch(() => ({}))) as Record<string, unknown>;
  if (response.ok) return answer;
  throw apiErrorOf(response, answer);
}

function readIceServers(servers: unknown): RTCIceServer[] {
  if (!Array.isArray(servers)) return [];
  return servers.map((server: Record<string, unknown>) => ({
    urls: (server["urls"] as unknown[]).map(String),
    ...(server["username"] ? { username: String(server["username"]), credential: String(server["credential"]) } : {}),
  }));
}
