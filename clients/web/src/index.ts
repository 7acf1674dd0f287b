/** The public surface of the web client. */
export type { Carrier } from "./carrier.js";
export {
  Client,
  type ClientOptions,
  type CreateOptions,
  type LiveOptions,
  type ModelInfo,
  type WatchOptions,
} from "./client.js";
export { Controls, type ControlOptions, type ControlSink } from "./controls.js";
export {
  ApiError,
  ConnectionLostError,
  DecodeError,
  type ErrorReport,
  IthakaError,
  ProtocolError,
  StreamError,
  UnsupportedError,
  UsageError,
} from "./errors.js";
export { type LiveCarrier, LiveSession } from "./live-session.js";
export type { ControlChange, Hello, Numbered, StateChanged } from "./protocol.js";
export { Session, type SessionEvents, type SessionInfo } from "./session.js";
export type { Outcome, Phase } from "./stream.js";
export type { FrameShown } from "./worker-messages.js";
