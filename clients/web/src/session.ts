import type { Carrier } from "./carrier.js";
import { type ErrorReport, IthakaError, UsageError } from "./errors.js";
import { HeldKeys } from "./held-keys.js";
import { buildControl, type ControlChange, type Hello, type StateChanged, type Wish } from "./protocol.js";
import type { Outcome, Phase } from "./stream.js";
import type { Takeover } from "./takeover.js";
import type { FrameShown, FromWorker, ToWorker } from "./worker-messages.js";

/** A session as the server described it when it was created. */
export interface SessionInfo {
  readonly id: string;
  readonly state: string;
  readonly model: string;
  readonly seed: number;
  readonly prompt: string;
  readonly width: number;
  readonly height: number;
  readonly fps: number;
  readonly queuePosition: number | null;
}

/** What a session tells. Each handler is optional. */
export interface SessionEvents {
  phase?(phase: Phase): void;
  /** `numConnections` is 1 plus the number of resumes. */
  connected?(hello: Hello, numConnections: number): void;
  state?(state: StateChanged): void;
  /** What carries the session from now on, and why it is not what was wanted. */
  carrier?(carrier: Carrier, why: string | null): void;
  /** Without a canvas `frame.picture` is a VideoFrame that the handler closes. */
  frame?(frame: FrameShown): void;
  /** The last event. `error` is null after a regular end. */
  ended?(outcome: Outcome, error: ErrorReport | null): void;
}

/** What a session needs of a Worker. */
export interface SessionWorker {
  onmessage: ((event: MessageEvent<FromWorker>) => void) | null;
  onerror: ((event: ErrorEvent) => void) | null;
  postMessage(message: ToWorker, transfer?: Transferable[]): void;
  terminate(): void;
}

export interface SessionParts {
  readonly info: SessionInfo;
  readonly worker: SessionWorker;
  readonly order: Extract<ToWorker, { type: "open" }>;
  readonly events: SessionEvents;
  readonly renewToken: () => Promise<string | null>;
  /** What another carrier left. */
  readonly takeover?: Takeover | null;
  /** Where the order names a channel. */
  readonly channel?: { giveUp(): void } | null;
}

/** A session as a page uses it: it shows frames in its canvas and takes controls. Made by `Client.createSession`. */
export class Session {
  readonly info: SessionInfo;
  hello: Hello | null = null;
  private readonly worker: SessionWorker;
  private readonly events: SessionEvents;
  private readonly renewToken: () => Promise<string | null>;
  private readonly channel: { giveUp(): void } | null;
  private readonly keys: HeldKeys;
  private lastControlId: number;
  private hasEnded = false;

  constructor(parts: SessionParts) {
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
    if (parts.takeover?.wish) this.want(parts.takeover.wish);
  }

  /**
   * Returns the control's id: the first frame whose `controlId` is at least this used it. Keys and prompt that an outage
   * swallows are told again after it. Throws UsageError before `connected`, and for what the model does not take.
   */
  control(change: ControlChange): number {
    if (this.hello === null) throw new UsageError("The session is not connected yet.");
    if (this.hello.role === "viewer") throw new UsageError("A viewer steers nothing.");
    if (change.prompt !== undefined && !this.hello.takesPrompt) throw new UsageError("The model takes no prompt.");
    if ((change.pointerDx || change.pointerDy) && !this.hello.takesPointer) throw new UsageError("The model takes no pointer.");
    this.lastControlId += 1;
    this.keys.apply(this.lastControlId, change);
    this.post({ type: "send", text: buildControl(this.lastControlId, change) });
    return this.lastControlId;
  }

  pause(): void {
    this.want("pause");
  }

  play(): void {
    this.want("play");
  }

  /** Generate no more. What was generated is still shown, and its delivery confirmed. */
  end(): void {
    this.want("end");
  }

  /** Leave at once, without a further event. The server keeps the session for a while, then ends it. */
  close(): void {
    this.post({ type: "close" });
    this.hasEnded = true;
  }

  private want(wish: Wish): void {
    this.post({ type: "wish", wish });
  }

  private post(message: ToWorker): void {
    if (!this.hasEnded) this.worker.postMessage(message);
  }

  private receive(message: FromWorker): void {
    if (this.hasEnded) return;
    switch (message.type) {
      case "phase":
        this.events.phase?.(message.phase);
        break;
      case "connected":
        this.hello = message.hello;
        if (message.numConnections > 1) this.repeatKeys();
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
        if (this.events.frame) this.events.frame(message.frame);
        else message.frame.picture?.close();
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

  private repeatKeys(): void {
    const snapshot = this.keys.snapshot();
    if (snapshot !== null) this.control(snapshot);
  }

  private fail(cause: string): void {
    if (this.hasEnded) return;
    this.hasEnded = true;
    this.worker.terminate();
    const outcome = { delivered: null, state: "failed", reason: "internal", lastSeq: 0, decodedCount: 0 };
    this.events.ended?.(outcome, new IthakaError("internal", `The player failed: ${cause}.`));
  }
}
