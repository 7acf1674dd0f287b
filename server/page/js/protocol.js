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
export function parseMessage(text) {
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
function parseHello(fields) {
    const version = fields.count("version");
    if (version !== VERSION) {
        throw new ProtocolError(`The server speaks version ${version}, this client ${VERSION}.`, "version_unsupported");
    }
    const hello = {
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
export function parseFrame(data) {
    if (data.byteLength < HEADER_BYTES) {
        throw new ProtocolError(`a frame of ${data.byteLength} bytes is shorter than its header of ${HEADER_BYTES}`);
    }
    const view = new DataView(data);
    const kind = view.getUint8(0);
    const flags = view.getUint8(1);
    const headerBytes = view.getUint16(2);
    const payloadBytes = view.getUint32(4);
    if (kind !== FRAME_KIND)
        throw new ProtocolError(`a binary message of kind ${kind} is not known`);
    if (headerBytes < HEADER_BYTES) {
        throw new ProtocolError(`a frame's header has at least ${HEADER_BYTES} bytes, not ${headerBytes}`);
    }
    if (headerBytes + payloadBytes !== data.byteLength) {
        throw new ProtocolError(`a frame of ${data.byteLength} bytes says ${headerBytes} of header and ${payloadBytes} of payload`);
    }
    const seq = safeInteger(view.getBigUint64(8), "seq");
    if (seq === 0)
        throw new ProtocolError("a frame's seq is at least 1");
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
function safeInteger(value, name) {
    if (value > BigInt(Number.MAX_SAFE_INTEGER))
        throw new ProtocolError(`a frame's ${name} is beyond 2^53 - 1`);
    return Number(value);
}
/** Only what changed is sent. */
export function buildControl(controlId, change) {
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
export function buildResume(stream, nextSeq) {
    return JSON.stringify({ type: "resume", stream, next_seq: nextSeq });
}
export function buildAck(receivedThrough, decodedThrough) {
    return JSON.stringify({ type: "ack", received_through: receivedThrough, decoded_through: decodedThrough });
}
export function buildFin(decodedCount, lastSeq) {
    return JSON.stringify({ type: "fin", decoded_count: decodedCount, last_seq: lastSeq });
}
export function buildPong(id) {
    return JSON.stringify({ type: "pong", id });
}
/** Answers no ping, since their ids begin at 1: it says nothing, and shows whether anybody is there to take it. */
export const PROBE = buildPong(0);
export function buildWish(wish) {
    return JSON.stringify({ type: wish });
}
/** A JSON object whose fields are checked as they are read. */
class Fields {
    values;
    constructor(text) {
        let values;
        try {
            values = JSON.parse(text);
        }
        catch {
            throw new ProtocolError("a text message is not JSON");
        }
        if (typeof values !== "object" || values === null || Array.isArray(values)) {
            throw new ProtocolError("a text message is not a JSON object");
        }
        this.values = values;
    }
    text(name, missing) {
        const value = this.get(name) ?? missing;
        if (typeof value !== "string")
            throw this.wrong(name, "a string");
        return value;
    }
    texts(name) {
        const value = this.get(name);
        if (!Array.isArray(value) || !value.every((item) => typeof item === "string"))
            throw this.wrong(name, "a list of strings");
        return value;
    }
    count(name) {
        const value = this.get(name);
        if (typeof value !== "number" || !Number.isSafeInteger(value) || value < 0) {
            throw this.wrong(name, "an integer from 0 to 2^53 - 1");
        }
        return value;
    }
    flag(name, missing) {
        const value = this.get(name) ?? missing;
        if (typeof value !== "boolean")
            throw this.wrong(name, "true or false");
        return value;
    }
    flagOrNull(name) {
        return (this.get(name) ?? null) === null ? null : this.flag(name);
    }
    get(name) {
        return Object.hasOwn(this.values, name) ? this.values[name] : undefined;
    }
    wrong(name, wanted) {
        return new ProtocolError(`${String(this.get("type")).slice(0, 40)}: ${name} must be ${wanted}`);
    }
}
