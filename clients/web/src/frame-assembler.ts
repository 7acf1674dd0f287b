import { HEADER_BYTES } from "./protocol.js";

/** Frames out of the messages of a data channel: one that is too long for a message comes in several, see `payload_bytes`. Pure. */
export class FrameAssembler {
  private parts: ArrayBuffer[] = [];
  private numBytes = 0;

  /** Returns the frame once it is whole. One that can't be right comes out as it is: whoever reads it says what is wrong. */
  add(part: ArrayBuffer): ArrayBuffer | null {
    this.parts.push(part);
    this.numBytes += part.byteLength;
    const first = this.parts[0] as ArrayBuffer;
    if (first.byteLength >= HEADER_BYTES && this.numBytes < frameBytes(first)) return null;
    const whole = this.parts.length === 1 ? first : this.join();
    this.parts = [];
    this.numBytes = 0;
    return whole;
  }

  private join(): ArrayBuffer {
    const whole = new Uint8Array(this.numBytes);
    let at = 0;
    for (const part of this.parts) {
      whole.set(new Uint8Array(part), at);
      at += part.byteLength;
    }
    return whole.buffer;
  }
}

/** Of the header and the payload together. */
function frameBytes(first: ArrayBuffer): number {
  const view = new DataView(first);
  return view.getUint16(2) + view.getUint32(4);
}
