/**
 * Protocol version 1, pure: text and bytes in, plain values out, and back. It does no I/O.
 *
 * `parseMessage` and `parseFrame` throw ProtocolError for whatever they do not understand, and nothing else. Unknown fields are
 * ignored and an unknown message type is reported as such, so that a newer server of the same version can be talked to.
 */
import { ProtocolError } from "./errors.js";

export const VERSION = 1;
export const SUBPROTOCOL = "ithaka.v1";
export const TOKEN_SUBPROTOCOL_PREFIX = "ithaka.token.";

export const FRAME_KIND = 1;
export const HEADER_BYTES = 40;
export const FLAG_KEY_FRAME = 1;
export const FLAG_DECODE_ONLY = 2;

/** The stream behind a connection. `nextSeq` is the first frame that the server counts as not yet decoded. */
export interface Hello {
  readonly type: "hello";
  readonly session: string;
  readonly stream: string;
  readonly role: string;
  readonly nextSeq: number;
  readonly window: number;
  readonly codec: string;
  readonly width: number;
  readonly height: number;
  readonly fps: number;
  readonly pixels: string;
  readonly model: string;
  readonly controls: readonly string[];
  readonly takesPrompt: boolean;
  readonly takesPointer: boolean;
}

/** `delivered` stands on the last one only. */
export interface StateChanged {
  readonly type: "state";
  readonly state: string;
  readonly reason: string;
  readonly delivered: boolean | null;
}

export interface Ping {
  readonly type: "ping";
  readonly id: number;
}

/** No frame follows `lastSeq`; `count` is the number of frames of the stream in all. */
export interface EndOfStream {
  readonly type: "eos";
  readonly lastSeq: number;
  readonly count: number;
  readonly reason: string;
  readonly retryable: boolean;
}

/** On a track in VP8: the frame that is shown at this RTP time. `generatedUs`: the server's monotonic clock. */
export interface Numbered {
  readonly type: "numbered";
  readonly seq: number;
  readonly controlId: number;
  readonly generatedUs: number;
  readonly rtpTimestamp: number;
}

export interface ServerError {
  readonly type: "error";
  readonly code: string;
  readonly message: string;
  readonly retryable: boolean;
}

export interface UnknownMessage {
  readonly type: "unknown";
  readonly name: string;
}

export type ServerMessage = Hello | StateChanged | Ping | EndOfStream | Numbered | ServerError | UnknownMessage;

/** One access unit (H.264 Annex B). `pts` in 1/fps seconds, `ageMs` from generation to sending. */
export interface EncodedFrame {
  readonly seq: number;
  readonly pts: number;
  readonly controlId: number;
  readonly chunk: number;
  readonly ageMs: number;
  readonly isKey: boolean;
  readonly isDecodeOnly: boolean;
  readonly payload: Uint8Array<ArrayBuffer>;
}

export function parseMessage(text: string): ServerMessage {
  const fields = new Fields(text);
  const type = fields.text("type");
  switch (type) {
    case "hello":
      return parseHello(fields);
    case "state":
      return { type, state: fields.text("state"), reason: fields.text("reason", ""), delivered: fields.flagOrNull("delivered") };
    case "ping":
      return { type, id: fields.count("id") };
    case "eos":
      return {
        type,
        lastSeq: fields.count("last_seq"),
        count: fields.count("count"),
        reason: fields.text("reason"),
        retryable: fields.flag("retryable", false),
      };
    case "numbered":
      return {
        type,
        seq: fields.count("seq"),
        controlId: fields.count("control_id"),
        generatedUs: fields.count("generated_us"),
        rtpTimestamp: fields.count("rtp_timestamp"),
      };
    case "error":
      return { type, code: fields.text("code"), message: fields.text("message"), retryable: fields.flag("retryable", false) };
    default:
      return { type: "unknown", name: type };
  }
}

function parseHello(fields: Fields): Hello {
  const version = fields.count("version");
  if (version !== VERSION) {
    throw new ProtocolError(`The server speaks version ${version}, this client ${VERSION}.`, "version_unsupported");
  }
  const hello: Hello = {
    type: "hello",
    session: fields.text("session"),
    stream: fields.text("stream"),
    role: fields.text("role"),
    nextSeq: fields.count("next_seq"),
    window: fields.count("window"),
    codec: fields.text("codec"),
    width: fields.count("width"),
    height: fields.count("height"),
    fps: fields.count("fps"),
    pixels: fields.text("pixels"),
    model: fields.text("model"),
    controls: fields.texts("controls"),
    takesPrompt: fields.flag("takes_prompt"),
    takesPointer: fields.flag("takes_pointer"),
  };
  if (Math.min(hello.nextSeq, hello.window, hello.width, hello.height, hello.fps) < 1) {
    throw new ProtocolError("hello: next_seq, window, width, height and fps are at least 1");
  }
  return hello;
}

export function parseFrame(data: ArrayBuffer): EncodedFrame {
  if (data.byteLength < HEADER_BYTES) {
    throw new ProtocolError(`a frame of ${data.byteLength} bytes is shorter than its header of ${HEADER_BYTES}`);
  }
  const view = new DataView(data);
  const kind = view.getUint8(0);
  const flags = view.getUint8(1);
  const headerBytes = view.getUint16(2);
  const payloadBytes = view.getUint32(4);
  if (kind !== FRAME_KIND) throw new ProtocolError(`a binary message of kind ${kind} is not known`);
  if (headerBytes < HEADER_BYTES) {
    throw new ProtocolError(`a frame's header has at least ${HEADER_BYTES} bytes, not ${headerBytes}`);
  }
  if (headerBytes + payloadBytes !== data.byteLength) {
    throw new ProtocolError(
      `a frame of ${data.byteLength} bytes says ${headerBytes} of header and ${payloadBytes} of payload`,
    );
  }
  const seq = safeInteger(view.getBigUint64(8), "seq");
  if (seq === 0) throw new ProtocolError("a frame's seq is at least 1");
  return {
    seq,
    pts: safeInteger(view.getBigUint64(16), "pts"),
    controlId: safeInteger(view.getBigUint64(24), "control_id"),
    chunk: view.getUint32(32),
    ageMs: view.getUint32(36),
    isKey: (flags & FLAG_KEY_FRAME) !== 0,
    isDecodeOnly: (flags & FLAG_DECODE_ONLY) !== 0,
    payload: new Uint8Array(data, headerBytes),
  };
}

function safeInteger(value: bigint, name: string): number {
  if (value > BigInt(Number.MAX_SAFE_INTEGER)) throw new ProtocolError(`a frame's ${name} is beyond 2^53 - 1`);
  return Number(value);
}

/** Keys by KeyboardEvent.code; pointer motion in CSS pixels, right and down positive; no prompt: unchanged. */
export interface ControlChange {
  readonly pressed?: readonly string[];
  readonly released?: readonly string[];
  readonly pointerDx?: number;
  readonly pointerDy?: number;
  readonly prompt?: string;
}

/** Only what changed is sent. */
export function buildControl(controlId: number, change: ControlChange): string {
  return JSON.stringify({
    type: "control",
    control_id: controlId,
    ...(change.pressed?.length ? { pressed: change.pressed } : {}),
    ...(change.released?.length ? { released: change.released } : {}),
    ...(change.pointerDx ? { pointer_dx: change.pointerDx } : {}),
    ...(change.pointerDy ? { pointer_dy: change.pointerDy } : {}),
    ...(change.prompt === undefined ? {} : { prompt: change.prompt }),
  });
}

/** `nextSeq`: the first frame that the client still needs shown. */
export function buildResume(stream: string, nextSeq: number): string {
  return JSON.stringify({ type: "resume", stream, next_seq: nextSeq });
}

export function buildAck(receivedThrough: number, decodedThrough: number): string {
  return JSON.stringify({ type: "ack", received_through: receivedThrough, decoded_through: decodedThrough });
}

export function buildFin(decodedCount: number, lastSeq: number): string {
  return JSON.stringify({ type: "fin", decoded_count: decodedCount, last_seq: lastSeq });
}

export function buildPong(id: number): string {
  return JSON.stringify({ type: "pong", id });
}

/** Answers no ping, since their ids begin at 1: it says nothing, and shows whether anybody is there to take it. */
export const PROBE = buildPong(0);

export type Wish = "pause" | "play" | "end";

export function buildWish(wish: Wish): string {
  return JSON.stringify({ type: wish });
}

/** A JSON object whose fields are checked as they are read. */
class Fields {
  private readonly values: Readonly<Record<string, unknown>>;

  constructor(text: string) {
    let values: unknown;
    try {
      values = JSON.parse(text);
    } catch {
      throw new ProtocolError("a text message is not JSON");
    }
    if (typeof values !== "object" || values === null || Array.isArray(values)) {
      throw new ProtocolError("a text message is not a JSON object");
    }
    this.values = values as Record<string, unknown>;
  }

  text(name: string, missing?: string): string {
    const value = this.get(name) ?? missing;
    if (typeof value !== "string") throw this.wrong(name, "a string");
    return value;
  }

  texts(name: string): readonly string[] {
    const value = this.get(name);
    if (!Array.isArray(value) || !value.every((item) => typeof item === "string")) throw this.wrong(name, "a list of strings");
    return value;
  }

  count(name: string): number {
    const value = this.get(name);
    if (typeof value !== "number" || !Number.isSafeInteger(value) || value < 0) {
      throw this.wrong(name, "an integer from 0 to 2^53 - 1");
    }
    return value;
  }

  flag(name: string, missing?: boolean): boolean {
    const value = this.get(name) ?? missing;
    if (typeof value !== "boolean") throw this.wrong(name, "true or false");
    return value;
  }

  flagOrNull(name: string): boolean | null {
    return (this.get(name) ?? null) === null ? null : this.flag(name);
  }

  private get(name: string): unknown {
    return Object.hasOwn(this.values, name) ? this.values[name] : undefined;
  }

  private wrong(name: string, wanted: string): ProtocolError {
    return new ProtocolError(`${String(this.get("type")).slice(0, 40)}: ${name} must be ${wanted}`);
  }
}
