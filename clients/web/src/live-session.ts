import { awaitAdmission, type Standing } from "./admission.js";
import type { Carrier } from "./carrier.js";
import type { Clock } from "./clock.js";
import { type ErrorReport, IthakaError, reportOf, StreamError, UsageError } from "./errors.js";
import type { ControlChange, Hello, Numbered } from "./protocol.js";
import type { Session, SessionEvents, SessionInfo } from "./session.js";
import type { Takeover } from "./takeover.js";
import type { LiveEvents } from "./live-video.js";

export type LiveCarrier = Extract<Carrier, "webrtc" | "websocket">;

/** What a live session needs of the WebRTC carrier. */
export interface TrackCarrier {
  readonly hello: Hello | null;
  control(change: ControlChange): number;
  pause(): void;
  play(): void;
  end(): void;
  close(): void;
  frameAt(rtpTimestamp: number): Numbered | null;
  /** See `LiveVideo.giveUp`. */
  giveUp(timeoutMs: number): Promise<Takeover>;
}

export interface LiveParts {
  readonly info: SessionInfo;
  readonly sessionUrl: string;
  readonly token: string | null;
  readonly events: SessionEvents;
  readonly clock: Clock;
  readonly random: () => number;
  /** Bounds each outage. */
  readonly resumeTimeoutMs: number;
  /** Throws IthakaError when WebRTC does not come up. Null: it is not wanted. */
  readonly openTrack: ((events: LiveEvents) => Promise<TrackCarrier>) | null;
  /** `takeover` is null where nothing came before it. Throws UnsupportedError. */
  readonly openSocket: (events: SessionEvents, takeover: Takeover | null) => Session;
}

/**
 * A live session as a page uses it, whatever carries it. It waits for its place; then WebRTC is tried, and a WebSocket takes its
 * place where that does not come up, or breaks later.
 */
export class LiveSession {
  readonly info: SessionInfo;
  private track: TrackCarrier | null = null;
  private socket: Session | null = null;
  private numConnections = 0;
  private lost: ErrorReport | null = null;
  private hasEnded = false;
  private readonly abort = new AbortController();

  /** Returns at once; the events tell the rest. */
  constructor(private readonly parts: LiveParts) {
    this.info = parts.info;
    void this.begin();
  }

  get hello(): Hello | null {
    return this.carried?.hello ?? null;
  }

  /** What carries it; null while that is not known. */
  get carrier(): LiveCarrier | null {
    if (this.socket !== null) return "websocket";
    return this.track === null ? null : "webrtc";
  }

  /** Which frame a picture of the video element is, see `LiveVideo.frameAt`. */
  frameAt(rtpTimestamp: number): Numbered | null {
    return this.track?.frameAt(rtpTimestamp) ?? null;
  }

  /** Returns the control's id. Throws UsageError before `connected`, and as `Session.control`. */
  control(change: ControlChange): number {
    if (this.carried === null) throw new UsageError("The session is not connected yet.");
    return this.carried.control(change);
  }

  pause(): void {
    this.carried?.pause();
  }

  play(): void {
    this.carried?.play();
  }

  /** Generate no more. */
  end(): void {
    this.carried?.end();
  }

  /** Leave at once, without a further event. The last picture stays. */
  close(): void {
    this.hasEnded = true;
    this.abort.abort();
    this.carried?.close();
  }

  private get carried(): TrackCarrier | Session | null {
    return this.socket ?? this.track;
  }

  private async begin(): Promise<void> {
    try {
      if (this.parts.openTrack === null) this.openSocket(null, null);
      else await this.beginWithTrack(this.parts.openTrack);
    } catch (error) {
      this.fail(error);
    }
  }

  private async beginWithTrack(openTrack: NonNullable<LiveParts["openTrack"]>): Promise<void> {
    if (this.info.state === "queued") {
      const standing = await awaitAdmission({ ...this.parts, signal: this.abort.signal, outageTimeoutMs: this.parts.resumeTimeoutMs });
      if (standing.state === "closed" || standing.state === "failed") throw this.refusal(standing);
    }
    if (this.hasEnded) return;
    let track: TrackCarrier;
    try {
      track = await openTrack(this.trackEvents());
    } catch (error) {
      if (!this.hasEnded) this.openSocket(reportOf(error).message, null);
      return;
    }
    this.track = track;
    if (this.hasEnded) {
      track.close();
      return;
    }
    this.parts.events.carrier?.("webrtc", null);
    // It may have broken in the moment in which it came up.
    if (this.lost !== null) await this.takeOver(track, this.lost);
  }

  private trackEvents(): LiveEvents {
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
        if (this.track !== null) this.takeOver(this.track, error).catch((cause: unknown) => this.fail(cause));
      },
    };
  }

  /** The track is gone and the session is not: the WebSocket goes on with it. */
  private async takeOver(track: TrackCarrier, error: ErrorReport): Promise<void> {
    this.parts.events.phase?.("reconnecting");
    const takeover = await track.giveUp(this.parts.resumeTimeoutMs);
    if (this.hasEnded) takeover.picture?.close();
    else this.openSocket(error.message, takeover);
  }

  private openSocket(why: string | null, takeover: Takeover | null): void {
    const { events } = this.parts;
    const told: SessionEvents = {
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

  private noteConnected(hello: Hello): void {
    this.numConnections += 1;
    this.parts.events.connected?.(hello, this.numConnections);
  }

  private refusal({ reason, message, retryable }: Standing): IthakaError {
    return new StreamError(reason || "session_ended", message || "The session ended before it began.", retryable, 0);
  }

  private fail(error: unknown): void {
    if (this.hasEnded) return;
    this.hasEnded = true;
    const report = reportOf(error);
    const outcome = { delivered: null, state: "failed", reason: report.code, lastSeq: 0, decodedCount: 0 };
    this.parts.events.ended?.(outcome, error instanceof IthakaError ? error : report);
  }
}
