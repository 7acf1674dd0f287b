import type { Clock } from "./clock.js";
import { ConnectionLostError, type ErrorReport, reportOf, StreamError, UsageError } from "./errors.js";
import { HeldKeys } from "./held-keys.js";
import { PeerLink } from "./peer-link.js";
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
import type { Outcome } from "./stream.js";
import type { Takeover } from "./takeover.js";

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
  readonly deadlineMs?: number | undefined;
}

/** A live session in a video element: the picture comes as a WebRTC track, messages go over a data channel. */
export class LiveVideo {
  readonly info: SessionInfo;
  hello: Hello | null = null;
  private readonly link: PeerLink;
  private readonly numbers = new Map<number, Numbered>();
  private finalState: StateChanged | null = null;
  private lastSeq = 0;
  private lastControlId = 0;
  private readonly keys = new HeldKeys();
  private wish: Wish | null = null;
  private said: ErrorReport | null = null;
  private hasEnded = false;

  private constructor(private readonly options: LiveOptions) {
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
      if ("jitterBufferTarget" in receiver) receiver.jitterBufferTarget = 0;
      this.options.video.srcObject = new MediaStream([track]);
      void this.options.video.play().catch(() => {});
    };
  }

  /** Returns when media can flow. Throws ConnectionLostError, with the reason, when that takes longer than the deadline. */
  static async open(options: LiveOptions): Promise<LiveVideo> {
    const opened = new LiveVideo(options);
    await opened.link.connect();
    return opened;
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
    this.link.send(buildControl(this.lastControlId, change));
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
    // A video element that plays shows black once its track has ended.
    this.options.video.pause();
    this.link.close();
  }

  /** After `lost`: give the place back, see `PeerLink.giveUp`. Returns what another carrier has to know. */
  async giveUp(timeoutMs: number): Promise<Takeover> {
    const picture = pictureOf(this.options.video);
    await this.link.giveUp(timeoutMs);
    return { hello: this.hello, keys: this.keys, lastControlId: this.lastControlId, wish: this.wish, picture };
  }

  private receive(data: string | ArrayBuffer): void {
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
        this.link.send(buildResume(message.stream, message.nextSeq));
        this.options.events.connected?.(message);
        break;
      case "ping":
        this.link.send(buildPong(message.id));
        break;
      case "state":
        if (message.state === "closed" || message.state === "failed") this.finalState = message;
        this.options.events.state?.(message);
        break;
      case "eos":
        this.lastSeq = message.lastSeq;
        // A track does not say which pictures were shown, so none is claimed.
        if (this.hello?.role === "controller") this.link.send(buildFin(0, message.lastSeq));
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
    this.link.send(buildWish(wish));
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

/** What the element shows; null where that is nothing. */
function pictureOf(video: HTMLVideoElement): VideoFrame | null {
  try {
    return new VideoFrame(video);
  } catch {
    return null;
  }
}
