export { Client, } from "./client.js";
export { Controls } from "./controls.js";
export { ApiError, ConnectionLostError, DecodeError, IthakaError, ProtocolError, StreamError, UnsupportedError, UsageError, } from "./errors.js";
export { LiveSession } from "./live-session.js";
export { Session } from "./session.js";
