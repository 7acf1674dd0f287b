import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { describe, test } from "node:test";
import { ProtocolError } from "./errors.js";
import { HELLO } from "./fakes.js";
import * as protocol from "./protocol.js";

interface Golden {
  readonly server_messages: Record<string, Record<string, unknown>>;
  readonly client_messages: Record<string, Record<string, unknown>>;
  readonly frames: Record<string, Record<string, unknown>>;
}

// Compiled, this file lies in build/unit.
const golden = JSON.parse(readFileSync(new URL("../../../protocol/golden.json", import.meta.url), "utf8")) as Golden;

function bytes(hex: string): ArrayBuffer {
  return Uint8Array.from(Buffer.from(hex, "hex")).buffer;
}

/** Numbers that are the same in every run. */
function* randomBytes(): Generator<number, never> {
  for (let state = 12345; ; state = (state * 1103515245 + 12345) % 2 ** 31) yield (state >> 16) & 255;
}

describe("golden messages", () => {
  test("of the server are read", () => {
    const snake = (name: string): string => name.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);
    for (const message of Object.values(golden.server_messages)) {
      const parsed = protocol.parseMessage(JSON.stringify(message));
      const fields = Object.fromEntries(Object.entries(parsed).map(([name, value]) => [snake(name), value]));
      const { version: _version, time_base: _timeBase, ...expected } = message;
      assert.deepEqual(fields, message["type"] === "state" ? { delivered: null, ...expected } : expected);
    }
  });

  test("of the client are written", () => {
    const written = {
      resume: protocol.buildResume("89abcdef0123", 1),
      ack: protocol.buildAck(8, 7),
      control: protocol.buildControl(5, {
        pressed: ["KeyW"],
        released: ["KeyA"],
        pointerDx: 1.5,
        pointerDy: -2,
        prompt: "a red door",
      }),
      smallest_control: protocol.buildControl(1, { pressed: [], pointerDx: 0 }),
      pause: protocol.buildWish("pause"),
      play: protocol.buildWish("play"),
      end: protocol.buildWish("end"),
      fin: protocol.buildFin(48, 48),
      pong: protocol.buildPong(3),
    };
    const messages = Object.entries(written).map(([name, text]) => [name, JSON.parse(text) as unknown]);
    assert.deepEqual(Object.fromEntries(messages), golden.client_messages);
  });

  test("frames are read", () => {
    for (const { hex, ...expected } of Object.values(golden.frames)) {
      const frame = protocol.parseFrame(bytes(String(hex)));
      const fields = {
        seq: frame.seq,
        pts: frame.pts,
        control_id: frame.controlId,
        chunk: frame.chunk,
        age_ms: frame.ageMs,
        key: frame.isKey,
        decode_only: frame.isDecodeOnly,
        payload: Buffer.from(frame.payload).toString("hex"),
      };
      assert.deepEqual(fields, expected);
    }
  });
});

describe("text", () => {
  test("that is no message is refused", () => {
    const without = { ...HELLO, stream: undefined };
    for (const text of [
      "",
      "null",
      "[]",
      "{",
      "{}",
      '"ping"',
      '{"type":1}',
      '{"type":"ping"}',
      '{"type":"ping","id":-1}',
      '{"type":"ping","id":1.5}',
      '{"type":"ping","id":9007199254740992}',
      '{"type":"state","state":"closed","delivered":"yes"}',
      '{"type":"eos","last_seq":1,"count":1}',
      JSON.stringify({ ...HELLO, version: 2 }),
      JSON.stringify({ ...HELLO, width: 0 }),
      JSON.stringify({ ...HELLO, controls: [1] }),
      JSON.stringify(without),
    ]) {
      assert.throws(() => protocol.parseMessage(text), ProtocolError, text);
    }
  });

  test("of a kind that is not known is passed over", () => {
    assert.deepEqual(protocol.parseMessage('{"type":"weather","wind":3}'), { type: "unknown", name: "weather" });
    assert.deepEqual(protocol.parseMessage('{"type":"__proto__"}'), { type: "unknown", name: "__proto__" });
  });

  test("of any kind is read or refused, nothing else", () => {
    const random = randomBytes();
    const values = [null, true, -1, 1e400, 2 ** 60, "x", [], {}, [1], "\u0000"];
    for (const name of Object.keys(HELLO)) {
      for (const value of values) refuses(() => protocol.parseMessage(JSON.stringify({ ...HELLO, [name]: value })));
    }
    for (let round = 0; round < 2000; round += 1) {
      const text = String.fromCharCode(...Array.from({ length: random.next().value % 12 }, () => random.next().value));
      refuses(() => protocol.parseMessage(text));
    }
  });
});

describe("bytes", () => {
  const frame = String(golden.frames["key_frame"]?.["hex"]);

  test("that are no frame are refused", () => {
    const changed = (offset: number, value: number): ArrayBuffer => {
      const data = bytes(frame);
      new DataView(data).setUint8(offset, value);
      return data;
    };
    const bad = [new ArrayBuffer(0), bytes(frame.slice(0, 78)), changed(0, 2), changed(3, 39), changed(7, 1), changed(7, 7)];
    for (const data of [...bad, changed(15, 0), changed(8, 1), changed(16, 255), changed(24, 255)]) {
      assert.throws(() => protocol.parseFrame(data), ProtocolError);
    }
  });

  test("of any kind are read or refused, nothing else", () => {
    const random = randomBytes();
    for (let round = 0; round < 2000; round += 1) {
      const data = new Uint8Array(bytes(frame));
      for (let change = 0; change < 3; change += 1) data[random.next().value % data.length] = random.next().value;
      refuses(() => protocol.parseFrame(data.buffer.slice(0, 30 + (random.next().value % 17))));
    }
  });
});

function refuses(parse: () => unknown): void {
  try {
    parse();
  } catch (error) {
    assert.ok(error instanceof ProtocolError, String(error));
  }
}
