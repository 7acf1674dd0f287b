const MICROSECONDS = 1_000_000;
/** The WebCodecs decoder of one connection; it starts at a key frame. */
export class FrameDecoder {
    hello;
    listener;
    decoder;
    pending = new Map();
    constructor(hello, listener) {
        this.hello = hello;
        this.listener = listener;
        this.decoder = new VideoDecoder({
            output: (picture) => this.emit(picture),
            error: (error) => listener.onBroken(error.message),
        });
        // Annex B: no description. Parameter sets travel with each key frame.
        this.decoder.configure({
            codec: hello.codec,
            codedWidth: hello.width,
            codedHeight: hello.height,
            colorSpace: { primaries: "bt709", transfer: "bt709", matrix: "bt709", fullRange: false },
            optimizeForLatency: true,
        });
    }
    decode(frame) {
        if (this.decoder.state !== "configured")
            return;
        const timestamp = Math.round((frame.pts * MICROSECONDS) / this.hello.fps);
        this.pending.set(timestamp, frame);
        this.decoder.decode(new EncodedVideoChunk({ type: frame.isKey ? "key" : "delta", timestamp, data: frame.payload }));
    }
    /** Let out what is held back. Only before a key frame or the end. */
    flush() {
        // A broken decoder reports by itself.
        if (this.decoder.state === "configured")
            this.decoder.flush().catch(() => { });
    }
    close() {
        this.pending.clear();
        if (this.decoder.state !== "closed")
            this.decoder.close();
    }
    emit(picture) {
        const frame = this.pending.get(picture.timestamp);
        if (frame === undefined) {
            picture.close();
            this.listener.onBroken(`a picture of an unknown time, ${picture.timestamp} µs, was decoded`);
            return;
        }
        this.pending.delete(picture.timestamp);
        this.listener.onPicture(frame, picture);
    }
}
