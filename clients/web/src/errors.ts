/**
 * What can go wrong, by whose fault it is. Every error carries the server's stable code and says whether to try again.
 *
 *   IthakaError
 *    ├─ ApiError             the server answered a call with an error
 *    ├─ ConnectionLostError  the server can't be reached (any more)
 *    ├─ StreamError          the server ended or refused the stream; `closeCode` is the WebSocket's
 *    ├─ ProtocolError        a peer broke the protocol
 *    ├─ DecodeError          frames could not be decoded
 *    ├─ UnsupportedError     this browser or this address lacks what the client needs
 *    └─ UsageError           a call that this client can't take now
 */
export class IthakaError extends Error {
  constructor(
    readonly code: string,
    message: string,
    readonly retryable = false,
  ) {
    super(message);
    this.name = new.target.name;
  }
}

export class ApiError extends IthakaError {
  constructor(
    code: string,
    message: string,
    retryable: boolean,
    readonly status: number,
    readonly field: string | null,
    readonly retryAfterSeconds: number | null,
  ) {
    super(code, message, retryable);
  }
}

export class ConnectionLostError extends IthakaError {
  constructor(message: string, code = "connection_lost") {
    super(code, message, true);
  }
}

export class StreamError extends IthakaError {
  constructor(
    code: string,
    message: string,
    retryable: boolean,
    readonly closeCode: number,
  ) {
    super(code, message, retryable);
  }
}

export class ProtocolError extends IthakaError {
  constructor(message: string, code = "protocol_violation") {
    super(code, message);
  }
}

export class DecodeError extends IthakaError {
  constructor(message: string) {
    super("decode_failed", message);
  }
}

export class UnsupportedError extends IthakaError {
  constructor(message: string) {
    super("unsupported", message);
  }
}

export class UsageError extends IthakaError {
  constructor(message: string) {
    super("usage", message);
  }
}

/** The error that a server answered with. `answer`: its JSON, whatever that is. */
export function apiErrorOf(response: Response, answer: unknown): ApiError {
  const error = fieldsOf(fieldsOf(answer)["error"]);
  const retryAfter = response.headers.get("Retry-After");
  return new ApiError(
    String(error["code"] ?? `http_${response.status}`),
    String(error["message"] ?? `The server answered with HTTP status ${response.status}.`),
    error["retryable"] === true,
    response.status,
    typeof error["field"] === "string" ? error["field"] : null,
    retryAfter !== null && /^\d+$/.test(retryAfter) ? Number(retryAfter) : null,
  );
}

function fieldsOf(value: unknown): Record<string, unknown> {
  return typeof value === "object" && value !== null ? (value as Record<string, unknown>) : {};
}

/** An error as it crosses from the worker to the page. */
export interface ErrorReport {
  readonly code: string;
  readonly message: string;
  readonly retryable: boolean;
}

export function reportOf(error: unknown): ErrorReport {
  if (error instanceof IthakaError) return { code: error.code, message: error.message, retryable: error.retryable };
  return { code: "internal", message: String(error), retryable: false };
}

export const CLOSED_NORMALLY = 1000;
export const VIOLATION = 1008;
export const TOKEN_INVALID = 4401;
export const CONTROLLER_CONFLICT = 4409;

/** Close codes that reconnecting does not cure: stable code, words, retryable as a new session. */
const REFUSALS: Readonly<Record<number, readonly [string, string, boolean]>> = {
  1001: ["server_stopping", "The server stops. Start again once it is back.", true],
  1009: ["message_too_large", "A message was larger than the server takes.", false],
  1011: ["internal", "The server failed; its log says how.", false],
  1012: ["worker_lost", "The worker behind this session was lost. It comes back by itself: start again.", true],
  1013: ["viewers_full", "The session has as many viewers as it takes.", true],
  [TOKEN_INVALID]: ["token_invalid", "The session's token is missing or has expired.", false],
  4403: ["forbidden", "This page or this role may not open the stream.", false],
  4404: ["session_unknown", "The server has no such session; it may have ended.", false],
  [CONTROLLER_CONFLICT]: ["controller_connected", "Another controller is connected to this session.", true],
  4410: ["resume_refused", "The stream can't be resumed from there.", false],
  4429: ["rate_exceeded", "This client sent more messages than the server takes.", true],
};

/**
 * The error behind a WebSocket's close code, in the server's words where it gave some. A data channel has no codes: there the
 * server's error alone names the refusal.
 * An overdue answer, or a code that is not known, counts as a lost connection: it may be resumed. `why`: how it was lost.
 */
export function closeError(givenCode: number, said: ErrorReport | null, why = ""): IthakaError {
  const closeCode = givenCode in REFUSALS ? givenCode : (refusalNamed(said?.code) ?? givenCode);
  const refusal = REFUSALS[closeCode];
  if (refusal) {
    const [code, message, retryable] = refusal;
    return new StreamError(said?.code ?? code, said?.message || message, said?.retryable ?? retryable, closeCode);
  }
  if (closeCode === VIOLATION && !said?.retryable) {
    return new ProtocolError(said?.message || "The server closed the stream: this client broke the protocol.", said?.code);
  }
  if (said && !said.retryable) return new StreamError(said.code, said.message, false, closeCode);
  return new ConnectionLostError(said?.message || why || `The connection was lost (close code ${closeCode}).`, said?.code);
}

/** The close code that goes with a stable code. */
function refusalNamed(code: string | undefined): number | null {
  const found = Object.entries(REFUSALS).find(([, [name]]) => name === code);
  return found === undefined ? null : Number(found[0]);
}
