import { ProtocolError, StreamError } from "./errors.js";
/**
 * Where this client stands in a stream, across all its connections. Pure.
 *
 * It holds every connection to the order that the protocol promises: the first frame is a key frame at or before the resumed one,
 * each further seq is one more than the last, and what lies before the resumed one is marked as decode only.
 */
export class StreamPosition {
    receivedThrough = 0;
    decodedThrough = 0;
    decodedCount = 0;
    end = null;
    stream = null;
    resumedSeq = 1;
    expectedSeq = null;
    /** A connection says hello; returns the seq to resume from. Throws StreamError for another stream. */
    begin(hello) {
        if (this.stream !== null && this.stream !== hello.stream) {
            throw new StreamError("resume_foreign", "The session now carries another stream than the one watched here.", false, 4410);
        }
        this.stream = hello.stream;
        this.resumedSeq = this.decodedThrough + 1;
        this.expectedSeq = null;
        return this.resumedSeq;
    }
    /** Throws ProtocolError when the frame is out of order. */
    receive(frame) {
        if (this.expectedSeq === null) {
            if (frame.seq > this.resumedSeq) {
                throw new ProtocolError(`frames ${this.resumedSeq} to ${frame.seq - 1} are missing after a resume`);
            }
            if (!frame.isKey)
                throw new ProtocolError(`the first frame of a connection, ${frame.seq}, is no key frame`);
        }
        else if (frame.seq !== this.expectedSeq) {
            throw new ProtocolError(`frame ${frame.seq} came where ${this.expectedSeq} was expected`);
        }
        if (frame.isDecodeOnly !== frame.seq < this.resumedSeq) {
            throw new ProtocolError(`frame ${frame.seq} is wrongly marked; the stream was resumed at ${this.resumedSeq}`);
        }
        if (this.end !== null && frame.seq > this.end.lastSeq) {
            throw new ProtocolError(`frame ${frame.seq} came after the stream ended at ${this.end.lastSeq}`);
        }
        this.expectedSeq = frame.seq + 1;
        this.receivedThrough = Math.max(this.receivedThrough, frame.seq);
    }
    /** Frames between this one and the last decoded one are missing, and should not. */
    lacksBefore(seq) {
        return seq > this.decodedThrough + 1;
    }
    /** Frame `seq` was decoded. Returns whether it is to be shown: each one is, exactly once. */
    decode(seq) {
        if (seq <= this.decodedThrough)
            return false;
        if (seq !== this.decodedThrough + 1)
            throw new ProtocolError(`frame ${seq} was decoded after ${this.decodedThrough}`);
        this.decodedThrough = seq;
        this.decodedCount += 1;
        return true;
    }
    /** The server names the last frame. Throws ProtocolError when that contradicts what came. */
    finish(end) {
        if (end.lastSeq < this.receivedThrough) {
            throw new ProtocolError(`the stream ended at ${end.lastSeq}, but frame ${this.receivedThrough} was received`);
        }
        if (this.end !== null && this.end.lastSeq !== end.lastSeq) {
            throw new ProtocolError(`the stream ended at ${this.end.lastSeq} and again at ${end.lastSeq}`);
        }
        const expected = this.expectedSeq ?? this.resumedSeq;
        if (expected <= end.lastSeq) {
            throw new ProtocolError(`the stream ended at ${end.lastSeq}, but frame ${expected} never came`);
        }
        this.end = end;
    }
    /** Every frame of a stream that ended has been decoded. */
    get isComplete() {
        return this.end !== null && this.decodedThrough === this.end.lastSeq;
    }
}
/** A position in a live stream: frames may be missing, none comes twice or out of order. */
export class LivePosition extends StreamPosition {
    hiddenThrough = 0;
    receive(frame) {
        if (this.expectedSeq === null && !frame.isKey) {
            throw new ProtocolError(`the first frame of a connection, ${frame.seq}, is no key frame`);
        }
        // Whoever comes back to a picture that stands gets its group of pictures again; decode passes over what it knows.
        if (frame.seq < (this.expectedSeq ?? 1)) {
            throw new ProtocolError(`frame ${frame.seq} came where ${this.expectedSeq ?? 1} or a later one was expected`);
        }
        if (this.end !== null)
            throw new ProtocolError(`frame ${frame.seq} came after the stream ended at ${this.end.lastSeq}`);
        this.expectedSeq = frame.seq + 1;
        this.receivedThrough = Math.max(this.receivedThrough, frame.seq);
        if (frame.isDecodeOnly)
            this.hiddenThrough = frame.seq;
    }
    lacksBefore() {
        return false;
    }
    decode(seq) {
        if (seq <= this.decodedThrough)
            return false;
        this.decodedThrough = seq;
        if (seq <= this.hiddenThrough)
            return false;
        this.decodedCount += 1;
        return true;
    }
    finish(end) {
        if (end.lastSeq < this.receivedThrough) {
            throw new ProtocolError(`the stream ended at ${end.lastSeq}, but frame ${this.receivedThrough} was received`);
        }
        this.end = end;
    }
    /** Every frame that came has been decoded. */
    get isComplete() {
        return this.end !== null && this.decodedThrough === this.receivedThrough;
    }
}
