import { FrameAssembler } from "./frame-assembler.js";
import { SUBPROTOCOL } from "./protocol.js";
/** No close frame came, as a browser says it of a WebSocket. */
const CLOSED_ABNORMALLY = 1006;
/** A data channel of the page's thread, as a worker's socket: a worker has no WebRTC of its own. */
export class ChannelSocket {
    port;
    binaryType = "arraybuffer";
    protocol = SUBPROTOCOL;
    onopen = null;
    onmessage = null;
    onclose = null;
    frames = new FrameAssembler();
    constructor(port) {
        this.port = port;
        port.onmessage = ({ data }) => this.receive(data);
    }
    send(text) {
        this.port.postMessage(text);
    }
    close() {
        this.port.postMessage(null);
        this.port.close();
    }
    receive(data) {
        if (typeof data === "string")
            this.deliver(data);
        else if (data instanceof ArrayBuffer)
            this.deliver(this.frames.add(data));
        else
            this.onclose?.({ code: CLOSED_ABNORMALLY, reason: data.why });
    }
    deliver(data) {
        if (data !== null)
            this.onmessage?.({ data });
    }
}
