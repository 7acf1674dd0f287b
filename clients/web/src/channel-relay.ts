import { awaitAdmission } from "./admission.js";
import type { FromChannel } from "./channel-socket.js";
import { reportOf } from "./errors.js";
import { PeerLink, type PeerLinkOptions } from "./peer-link.js";

export interface ChannelRelayOptions extends PeerLinkOptions {
  /** The session stands in line. */
  readonly isQueued: boolean;
  readonly random: () => number;
  /** Bounds each outage. */
  readonly resumeTimeoutMs: number;
  readonly onOpen: () => void;
}

/**
 * Carries the messages of one data channel to a worker and back: only the page's thread has WebRTC. Tries once; when the channel
 * does not come up, or breaks, the worker is told why and takes another way.
 */
export class ChannelRelay {
  /** The worker's end, for a `ChannelSocket`. */
  readonly port: MessagePort;
  private readonly near: MessagePort;
  private readonly abort = new AbortController();
  private link: PeerLink | null = null;

  constructor(private readonly options: ChannelRelayOptions) {
    const { port1, port2 } = new MessageChannel();
    this.near = port1;
    this.port = port2;
    this.near.onmessage = ({ data }: MessageEvent<string | null>) => (data === null ? this.leave() : this.link?.send(data));
    void this.open();
  }

  /** Another carrier goes on: the server may not have noticed that this one is gone. */
  giveUp(): void {
    this.leave();
    void this.link?.giveUp(this.options.resumeTimeoutMs);
  }

  private async open(): Promise<void> {
    const { isQueued, resumeTimeoutMs, onOpen } = this.options;
    const { signal } = this.abort;
    try {
      if (isQueued) await awaitAdmission({ ...this.options, signal, outageTimeoutMs: resumeTimeoutMs });
      signal.throwIfAborted();
      this.link = new PeerLink(this.options, { onMessage: (data) => this.pass(data), onLost: (why) => this.pass({ why }) });
      await this.link.connect();
      onOpen();
    } catch (error) {
      this.pass({ why: reportOf(error).message });
    }
  }

  private pass(message: FromChannel): void {
    this.near.postMessage(message, message instanceof ArrayBuffer ? [message] : []);
  }

  private leave(): void {
    this.abort.abort();
    this.near.close();
    this.link?.close();
  }
}
