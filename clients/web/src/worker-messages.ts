import type { Carrier } from "./carrier.js";
import type { ErrorReport } from "./errors.js";
import type { Hello, StateChanged, Wish } from "./protocol.js";
import type { Outcome, Phase } from "./stream.js";

/** What the page says to the worker. */
export type ToWorker =
  | {
      readonly type: "open";
      readonly streamUrl: string;
      readonly sessionUrl: string;
      readonly token: string | null;
      /** Pictures are drawn here; without one they are posted. */
      readonly canvas: OffscreenCanvas | null;
      /** Shown until the first one is there. */
      readonly picture?: VideoFrame | null;
      /** Leads to a data channel of the page, see `ChannelSocket`: tried before the WebSocket. */
      readonly channel?: MessagePort | null;
      /** Show pictures when they are due, not as soon as they are decoded. */
      readonly isPaced: boolean;
      /** Frames may be missing. */
      readonly isLive?: boolean;
      /** Looks on and says nothing. */
      readonly isViewer?: boolean;
      /** Goes on with a session that another carrier lost. */
      readonly isTakeover?: boolean;
      readonly connectTimeoutMs: number;
      readonly resumeTimeoutMs: number;
    }
  /** `text`: a control message. */
  | { readonly type: "send"; readonly text: string }
  | { readonly type: "wish"; readonly wish: Wish }
  | { readonly type: "token"; readonly token: string | null }
  | { readonly type: "close" };

/** One shown frame. Times in milliseconds since the epoch. */
export interface FrameShown {
  readonly seq: number;
  readonly pts: number;
  readonly controlId: number;
  readonly chunk: number;
  readonly ageMs: number;
  readonly receivedAt: number;
  readonly decodedAt: number;
  readonly shownAt: number;
  /** Newest frame received and newest one decoded when this one was shown. */
  readonly receivedThrough: number;
  readonly decodedThrough: number;
  /** Only without a canvas. The receiver closes it. */
  readonly picture: VideoFrame | null;
}

/** What the worker says to the page. */
export type FromWorker =
  | { readonly type: "phase"; readonly phase: Phase }
  | { readonly type: "connected"; readonly hello: Hello; readonly numConnections: number }
  | { readonly type: "state"; readonly state: StateChanged }
  /** Another carrier goes on, and why. */
  | { readonly type: "carrier"; readonly carrier: Carrier; readonly why: string }
  | { readonly type: "frame"; readonly frame: FrameShown }
  | { readonly type: "token-needed" }
  | { readonly type: "ended"; readonly outcome: Outcome; readonly error: ErrorReport | null };
