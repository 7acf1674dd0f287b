import { Acknowledger } from "./acknowledger.js";
import { delaysMs } from "./backoff.js";
import type { Clock } from "./clock.js";
import { Connection, type ConnectionListener, type SocketFactory } from "./connection.js";
import { ConnectionLostError, CONTROLLER_CONFLICT, DecodeError, IthakaError, StreamError, TOKEN_INVALID } from "./errors.js";
import { LivePosition, StreamPosition } from "./position.js";
import {
  buildAck,
  buildFin,
  buildResume,
  buildWish,
  type EncodedFrame,
  type EndOfStream,
  type Hello,
  type StateChanged,
  type Wish,
} from "./protocol.js";

export type Phase = "connecting" | "connected" | "reconnecting" | "ended";

/** How a session ended. `delivered`: the server's verdict; null when it could not be learnt any more. */
export interface Outcome {
  readonly delivered: boolean | null;
  readonly state: string;
  readonly reason: string;
  readonly lastSeq: number;
  readonly decodedCount: number;
}

export interface StreamListener {
  onPhase(phase: Phase): void;
  /** A connection is there, the first or the next: frames start anew at a key frame. */
  onConnected(hello: Hello): void;
  onFrame(frame: EncodedFrame): void;
  /** No frame follows: whatever the decoder holds back has to come out now. */
  onLastFrame(): void;
  onState(state: StateChanged): void;
  /** Exactly once, and the last call. `error` is null after a regular end. */
  onEnded(outcome: Outcome, error: IthakaError | null): void;
}

export interface StreamOptions {
  readonly url: string;
  readonly token: string | null;
  readonly openSocket: SocketFactory;
  readonly clock: Clock;
  readonly random: () => number;
  /** How the session stands, asked over HTTP; null when that is not known. */
  readonly fetchVerdict: () => Promise<StateChanged | null>;
  /** A fresh token in place of an expired one, or null. */
  readonly renewToken: () => Promise<string | null>;
  readonly connectTimeoutMs: number;
  readonly resumeTimeoutMs: number;
  /** Frames may be missing. */
  readonly isLive?: boolean;
  /** Looks on: frames may be missing, and nothing is acknowledged. */
  readonly isViewer?: boolean;
  /** Another carrier was lost: the first connection here is a resume already, with its patience. */
  readonly isTakeover?: boolean;
  /** Told that a connection did not come up, or broke: whether `openSocket` takes another way from now on. */
  readonly fallBack?: (lost: ConnectionLostError) => boolean;
}

const ATTEMPT_TIMEOUT_MS = 5_000;
const FINISH_TIMEOUT_MS = 10_000;
const MAX_FAILED_DECODES = 3;

/** The stream of a session over as many connections as it takes: resumed after a loss, finished with a verdict. */
export class Stream implements ConnectionListener {
  readonly position: StreamPosition;
  numConnections = 0;
  private token: string | null;
  private connection: Connection | null = null;
  private isConnected = false;
  private hasEnded = false;
  private hasFinished = false;
  private wish: Wish | null = null;
  private finalState: StateChanged | null = null;
  private delays: Iterator<number, never> | null = null;
  private giveUpAt = Number.POSITIVE_INFINITY;
  private failedDecodes = { at: -1, count: 0 };
  private cancelTimer: () => void = () => {};
  private attemptNow: (() => void) | null = null;
  private readonly acknowledger: Acknowledger;

  constructor(
    private readonly options: StreamOptions,
    private readonly listener: StreamListener,
  ) {
    this.position = options.isLive || options.isViewer ? new LivePosition() : new StreamPosition();
    this.token = options.token;
    this.acknowledger = new Acknowledger(options.clock, () => this.acknowledge());
  }

  // -- for the owner ---------------------------------------------------------------------------------------------------

  start(): void {
    if (this.options.isTakeover) {
      this.numConnections = 1;
      this.reconnect(new ConnectionLostError("The connection was lost."));
      return;
    }
    this.listener.onPhase("connecting");
    this.connect(this.options.connectTimeoutMs);
  }

  /** Frame `seq` of this connection was decoded. Returns whether it is to be shown. */
  confirm(seq: number): boolean {
    if (this.position.lacksBefore(seq)) {
      this.restart(`frame ${seq} came out of the decoder after ${this.position.decodedThrough}`);
      return false;
    }
    const isShown = this.position.decode(seq);
    if (!this.options.isViewer) this.acknowledger.noteDecoded();
    this.finishIfComplete();
    return isShown;
  }

  /** Sent if there is a connection; what is lost is made up for after the next resume. */
  send(text: string): void {
    if (this.isConnected) this.connection?.send(text);
  }

  /** Told again after each resume. */
  want(wish: Wish): void {
    this.wish = wish;
    this.send(buildWish(wish));
  }

  /** The decoder broke: a fresh one starts at a key frame, which a new connection brings. */
  restart(cause: string): void {
    const at = this.position.decodedThrough;
    this.failedDecodes = { at, count: this.failedDecodes.at === at ? this.failedDecodes.count + 1 : 1 };
    const isHopeless = this.failedDecodes.count >= MAX_FAILED_DECODES;
    this.connection?.fail(
      isHopeless ? new DecodeError(`Frame ${at + 1} can't be decoded: ${cause}`) : new ConnectionLostError(cause, "decode_failed"),
    );
  }

  /** The network is back: don't wait for the next attempt. */
  hurry(): void {
    this.attemptNow?.();
  }

  /** Leave at once, without a further word. */
  close(): void {
    this.hasEnded = true;
    this.disarm();
    this.acknowledger.stop();
    this.connection?.close();
  }

  // -- what the connection tells -----------------------------------------------------------------------------------------

  onHello(hello: Hello): void {
    const nextSeq = this.position.begin(hello);
    this.disarm();
    this.numConnections += 1;
    this.delays = null;
    this.isConnected = true;
    this.hasFinished = false;
    this.listener.onConnected(hello);
    this.send(buildResume(hello.stream, nextSeq));
    if (this.wish !== null && this.numConnections > 1) this.send(buildWish(this.wish));
    this.listener.onPhase("connected");
  }

  onFrame(frame: EncodedFrame): void {
    this.position.receive(frame);
    if (!this.options.isViewer) this.acknowledger.noteReceived();
    this.listener.onFrame(frame);
  }

  onState(state: StateChanged): void {
    if (state.state === "closed" || state.state === "failed") this.finalState = state;
    this.listener.onState(state);
  }

  onEndOfStream(end: EndOfStream): void {
    this.position.finish(end);
    this.listener.onLastFrame();
    this.finishIfComplete();
  }

  onClosed(error: IthakaError | null): void {
    const wasConnected = this.isConnected;
    this.isConnected = false;
    this.connection = null;
    this.acknowledger.stop();
    this.disarm();
    if (this.hasEnded) return;
    if (error === null || this.finalState !== null) {
      void this.conclude();
      return;
    }
    const hasOtherWay = error instanceof ConnectionLostError && this.options.fallBack?.(error);
    if (wasConnected && error instanceof ConnectionLostError) this.reconnect(error);
    else if (hasOtherWay) this.connect(this.options.connectTimeoutMs);
    else if (this.delays !== null) void this.judgeRefusal(error);
    else this.end(this.outcome(this.finalState), error);
  }

  // -- one connection after the other ------------------------------------------------------------------------------------

  private connect(timeoutMs: number): void {
    const { clock, openSocket, url } = this.options;
    this.connection = new Connection(clock, openSocket, url, this.token, this);
    this.arm(timeoutMs, () => this.connection?.fail(new ConnectionLostError("The server did not say hello in time.", "connect_timeout")));
  }

  private reconnect(lost: IthakaError): void {
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
    const attempt = (): void => {
      this.disarm();
      this.connect(ATTEMPT_TIMEOUT_MS);
    };
    this.arm(this.delays.next().value, attempt);
    this.attemptNow = attempt;
  }

  /** An attempt to reconnect was turned down: wait, get a new token, or accept that it is over. */
  private async judgeRefusal(error: IthakaError): Promise<void> {
    const closeCode = error instanceof StreamError ? error.closeCode : 0;
    // The server may not have noticed yet that the lost connection is gone.
    if (error instanceof ConnectionLostError || closeCode === CONTROLLER_CONFLICT) {
      this.reconnect(error);
      return;
    }
    if (closeCode === TOKEN_INVALID) {
      const token = await this.options.renewToken();
      if (this.hasEnded) return;
      if (token !== null) {
        this.token = token;
        this.reconnect(error);
        return;
      }
    }
    const verdict = await this.options.fetchVerdict();
    if (this.hasEnded) return;
    if (verdict !== null && verdict.delivered !== null) this.settle(verdict);
    else this.end(this.outcome(null), error);
  }

  private finishIfComplete(): void {
    const end = this.position.end;
    if (end === null || !this.position.isComplete || this.hasFinished || !this.isConnected || this.options.isViewer) return;
    this.hasFinished = true;
    this.acknowledger.settle();
    this.acknowledge();
    this.send(buildFin(this.position.decodedCount, end.lastSeq));
    this.arm(FINISH_TIMEOUT_MS, () => {
      this.connection?.close();
      void this.conclude();
    });
  }

  private async conclude(): Promise<void> {
    let verdict = this.finalState;
    if (verdict?.delivered == null) verdict = (await this.options.fetchVerdict()) ?? verdict;
    if (!this.hasEnded) this.settle(verdict);
  }

  private settle(verdict: StateChanged | null): void {
    const { position } = this;
    if (position.isComplete && verdict?.state !== "failed") {
      this.end(this.outcome(verdict), null);
      return;
    }
    const code = position.end?.reason || verdict?.reason || "session_ended";
    const message = `The session ended after frame ${position.decodedThrough}.`;
    this.end(this.outcome(verdict), new StreamError(code, message, position.end?.retryable ?? false, 0));
  }

  private end(outcome: Outcome, error: IthakaError | null): void {
    this.hasEnded = true;
    this.disarm();
    this.listener.onPhase("ended");
    this.listener.onEnded(outcome, error);
  }

  private outcome(verdict: StateChanged | null): Outcome {
    const { position } = this;
    return {
      delivered: verdict?.delivered ?? null,
      state: verdict?.state ?? "closed",
      reason: verdict?.reason ?? "unknown",
      lastSeq: position.end?.lastSeq ?? position.receivedThrough,
      decodedCount: position.decodedCount,
    };
  }

  private acknowledge(): void {
    this.send(buildAck(this.position.receivedThrough, this.position.decodedThrough));
  }

  private arm(delayMs: number, callback: () => void): void {
    this.disarm();
    this.cancelTimer = this.options.clock.after(delayMs, callback);
  }

  private disarm(): void {
    this.cancelTimer();
    this.cancelTimer = () => {};
    this.attemptNow = null;
  }
}
