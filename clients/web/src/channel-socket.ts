import type { Socket } from "./connection.js";
import { FrameAssembler } from "./frame-assembler.js";
import { SUBPROTOCOL } from "./protocol.js";

/**
 * What comes from the page: a message of the data channel as it is, or that there is no channel any more. The worker sends texts,
 * and null once it has left.
 */
export type FromChannel = string | ArrayBuffer | { readonly why: string };

/** What is needed of a MessagePort. */
export interface Port {
  onmessage: ((event: MessageEvent<FromChannel>) => void) | null;
  postMessage(message: string | null): void;
  close(): void;
}

/** No close frame came, as a browser says it of a WebSocket. */
const CLOSED_ABNORMALLY = 1006;

/** A data channel of the page's thread, as a worker's socket: a worker has no WebRTC of its own. */
export class ChannelSocket implements Socket {
  binaryType = "arraybuffer";
  readonly protocol = SUBPROTOCOL;
  onopen: ((event: Event) => void) | null = null;
  onmessage: ((event: MessageEvent) => void) | null = null;
  onclose: ((event: CloseEvent) => void) | null = null;
  private readonly frames = new FrameAssembler();

  constructor(private readonly port: Port) {
    port.onmessage = ({ data }) => this.receive(data);
  }

  send(text: string): void {
    this.port.postMessage(text);
  }

  close(): void {
    this.port.postMessage(null);
    this.port.close();
  }

  private receive(data: FromChannel): void {
    if (typeof data === "string") this.deliver(data);
    else if (data instanceof ArrayBuffer) this.deliver(this.frames.add(data));
    else this.onclose?.({ code: CLOSED_ABNORMALLY, reason: data.why } as CloseEvent);
  }

  private deliver(data: string | ArrayBuffer | null): void {
    if (data !== null) this.onmessage?.({ data } as MessageEvent);
  }
}
