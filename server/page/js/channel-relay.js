import { awaitAdmission } from "./admission.js";
import { reportOf } from "./errors.js";
import { PeerLink } from "./peer-link.js";
/**
 * Carries the messages of one data channel to a worker and back: only the page's thread has WebRTC. Tries once; when the channel
 * does not come up, or breaks, the worker is told why and takes another way.
 */
export class ChannelRelay {
    options;
    /** The worker's end, for a `ChannelSocket`. */
    port;
    near;
    abort = new AbortController();
    link = null;
    constructor(options) {
        this.options = options;
        const { port1, port2 } = new MessageChannel();
        this.near = port1;
        this.port = port2;
        this.near.onmessage = ({ data }) => (data === null ? this.leave() : this.link?.send(data));
        void this.open();
    }
    /** Another carrier goes on: the server may not have noticed that this one is gone. */
    giveUp() {
        this.leave();
        void this.link?.giveUp(this.options.resumeTimeoutMs);
    }
    async open() {
        const { isQueued, resumeTimeoutMs, onOpen } = this.options;
        const { signal } = this.abort;
        try {
            if (isQueued)
                await awaitAdmission({ ...this.options, signal, outageTimeoutMs: resumeTimeoutMs });
            signal.throwIfAborted();
            this.link = new PeerLink(this.options, { onMessage: (data) => this.pass(data), onLost: (why) => this.pass({ why }) });
            await this.link.connect();
            onOpen();
        }
        catch (error) {
            this.pass({ why: reportOf(error).message });
        }
    }
    pass(message) {
        this.near.postMessage(message, message instanceof ArrayBuffer ? [message] : []);
    }
    leave() {
        this.abort.abort();
        this.near.close();
        this.link?.close();
    }
}
