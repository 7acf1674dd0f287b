import assert from "node:assert/strict";
import { describe, test } from "node:test";
import { ChannelSocket, type FromChannel, type Port } from "./channel-socket.js";
import { FrameAssembler } from "./frame-assembler.js";
import { HEADER_BYTES, parseFrame } from "./protocol.js";

/** A frame with this many bytes of payload, each of them its place's number. */
function frame(seq: number, payloadBytes: number): ArrayBuffer {
  const bytes = new Uint8Array(HEADER_BYTES + payloadBytes);
  const view = new DataView(bytes.buffer);
  view.setUint8(0, 1);
  view.setUint16(2, HEADER_BYTES);
  view.setUint32(4, payloadBytes);
  view.setBigUint64(8, BigInt(seq));
  for (let i = 0; i < payloadBytes; i += 1) bytes[HEADER_BYTES + i] = i % 251;
  return bytes.buffer;
}

function cut(data: ArrayBuffer, partBytes: number): ArrayBuffer[] {
  const parts = [];
  for (let at = 0; at < data.byteLength; at += partBytes) parts.push(data.slice(at, at + partBytes));
  return parts;
}

class FakePort implements Port {
  onmessage: ((event: MessageEvent<FromChannel>) => void) | null = null;
  readonly got: (string | null)[] = [];
  isClosed = false;

  postMessage(message: string | null): void {
    this.got.push(message);
  }
  close(): void {
    this.isClosed = true;
  }
  say(data: FromChannel): void {
    this.onmessage?.({ data } as MessageEvent<FromChannel>);
  }
}

describe("frames of a data channel", () => {
  test("come whole, however they were cut", () => {
    for (const partBytes of [HEADER_BYTES, 41, 1000, 64 * 1024]) {
      const frames = new FrameAssembler();
      for (const [seq, payloadBytes] of [[1, 0], [2, 1], [3, 5000], [4, 200_000]] as const) {
        const sent = frame(seq, payloadBytes);
        const out = cut(sent, partBytes).map((part) => frames.add(part));
        assert.deepEqual(out.slice(0, -1).filter((one) => one !== null), []);
        assert.deepEqual(out.at(-1), sent);
      }
    }
  });

  test("that can't be right come out, so that the reader refuses them", () => {
    for (const wrong of [new ArrayBuffer(3), frame(1, 9).slice(0, HEADER_BYTES - 1)]) {
      const out = new FrameAssembler().add(wrong);
      assert.throws(() => parseFrame(out as ArrayBuffer), /shorter than its header/);
    }
    const frames = new FrameAssembler();
    assert.equal(frames.add(frame(1, 9).slice(0, HEADER_BYTES + 8)), null);
    const tooLong = frames.add(frame(2, 9)) as ArrayBuffer;
    assert.throws(() => parseFrame(tooLong), /says 40 of header and 9 of payload/);
  });
});

describe("a data channel in a worker", () => {
  test("is a socket", () => {
    const port = new FakePort();
    const socket = new ChannelSocket(port);
    const heard: unknown[] = [];
    socket.onmessage = ({ data }) => heard.push(data);
    socket.onclose = ({ code, reason }) => heard.push([code, reason]);
    port.say("hello");
    const [first, second] = cut(frame(1, 50), 60) as [ArrayBuffer, ArrayBuffer];
    port.say(first);
    port.say(second);
    socket.send("resume");
    port.say({ why: "WebRTC fell silent." });
    assert.deepEqual(heard, ["hello", frame(1, 50), [1006, "WebRTC fell silent."]]);
    socket.close();
    assert.deepEqual([port.got, port.isClosed], [["resume", null], true]);
  });
});
