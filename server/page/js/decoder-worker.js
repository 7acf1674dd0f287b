/**
 * The worker that owns the WebSocket, or an end of the page's data channel, the decoder and the canvas of one session, so that a tab in the background keeps
 * acknowledging. Pictures are acknowledged when they are decoded, and drawn when they are due.
 */
import { ChannelSocket } from "./channel-socket.js";
import { systemClock } from "./clock.js";
import { FrameDecoder } from "./decoder.js";
import { reportOf } from "./errors.js";
import { Presenter } from "./presenter.js";
import { Stream } from "./stream.js";
const VERDICT_TIMEOUT_MS = 5_000;
const TOKEN_TIMEOUT_MS = 5_000;
const LINGER_MS = 1_000;
const scope = self;
class Player {
    order;
    stream;
    context;
    decoder = null;
    presenter = null;
    giveToken = null;
    channel;
    constructor(order) {
        this.order = order;
        this.context = order.canvas?.getContext("2d", { alpha: false, desynchronized: true }) ?? null;
        this.channel = order.channel ?? null;
        if (order.picture)
            this.begin(order.picture);
        this.stream = new Stream({
            url: order.streamUrl,
            token: order.token,
            openSocket: (url, protocols) => (this.channel === null ? new WebSocket(url, protocols) : new ChannelSocket(this.channel)),
            fallBack: (lost) => this.fallBack(lost),
            clock: systemClock,
            random: Math.random,
            fetchVerdict: () => this.fetchVerdict(),
            renewToken: () => this.renewToken(),
            isLive: order.isLive ?? false,
            isViewer: order.isViewer ?? false,
            isTakeover: order.isTakeover ?? false,
            connectTimeoutMs: order.connectTimeoutMs,
            resumeTimeoutMs: order.resumeTimeoutMs,
        }, this);
        this.stream.start();
    }
    handle(message) {
        switch (message.type) {
            case "send":
                this.stream.send(message.text);
                break;
            case "wish":
                this.stream.want(message.wish);
                break;
            case "token":
                this.giveToken?.(message.token);
                break;
            case "close":
                this.stream.close();
                this.decoder?.close();
                scope.close();
                break;
        }
    }
    hurry() {
        this.stream.hurry();
    }
    // -- what the stream tells ---------------------------------------------------------------------------------------------
    onPhase(phase) {
        scope.postMessage({ type: "phase", phase });
    }
    onConnected(hello) {
        this.decoder?.close();
        this.decoder = new FrameDecoder(hello, {
            onPicture: (frame, picture) => this.receivePicture(frame, picture),
            onBroken: (cause) => this.stream.restart(cause),
        });
        this.presenter ??= this.openPresenter(hello);
        scope.postMessage({ type: "connected", hello, numConnections: this.stream.numConnections });
    }
    onFrame(frame) {
        this.decoder?.decode({ ...frame, receivedAt: systemClock.now() });
    }
    onLastFrame() {
        this.decoder?.flush();
    }
    onState(state) {
        scope.postMessage({ type: "state", state });
    }
    onEnded(outcome, error) {
        this.presenter?.drain();
        this.decoder?.close();
        scope.postMessage({ type: "ended", outcome, error: error === null ? null : reportOf(error) });
        // The last picture reaches the screen some time after it was drawn, and not from a worker that is gone.
        systemClock.after(LINGER_MS, () => scope.close());
    }
    // -- pictures ------------------------------------------------------------------------------------------------------------
    openPresenter(hello) {
        this.size(hello.width, hello.height);
        return new Presenter(systemClock, 1000 / hello.fps, this.order.isPaced ? hello.window : 0, (decoded) => this.show(decoded));
    }
    /** With what another carrier showed last. */
    begin(picture) {
        this.size(picture.displayWidth, picture.displayHeight);
        this.context?.drawImage(picture, 0, 0);
        picture.close();
    }
    size(width, height) {
        const { canvas } = this.order;
        // Also to the same size it would be cleared.
        if (canvas === null || (canvas.width === width && canvas.height === height))
            return;
        canvas.width = width;
        canvas.height = height;
    }
    receivePicture(frame, picture) {
        if (this.stream.confirm(frame.seq)) {
            this.presenter?.push({ frame, chunk: frame.chunk, picture, decodedAt: systemClock.now() });
        }
        else {
            picture.close();
        }
    }
    show({ frame, picture, decodedAt }) {
        const { position } = this.stream;
        const shown = {
            seq: frame.seq,
            pts: frame.pts,
            controlId: frame.controlId,
            chunk: frame.chunk,
            ageMs: frame.ageMs,
            receivedAt: frame.receivedAt,
            decodedAt,
            shownAt: systemClock.now(),
            receivedThrough: position.receivedThrough,
            decodedThrough: position.decodedThrough,
        };
        if (this.context === null) {
            scope.postMessage({ type: "frame", frame: { ...shown, picture } }, [picture]);
            return;
        }
        this.context.drawImage(picture, 0, 0);
        picture.close();
        scope.postMessage({ type: "frame", frame: { ...shown, picture: null } });
    }
    // -- ways ----------------------------------------------------------------------------------------------------------------
    fallBack(lost) {
        if (this.channel === null)
            return false;
        this.channel = null;
        scope.postMessage({ type: "carrier", carrier: "websocket", why: lost.message });
        return true;
    }
    // -- what only the page or the HTTP side knows ---------------------------------------------------------------------------
    async fetchVerdict() {
        try {
            const response = await fetch(this.order.sessionUrl, {
                headers: this.order.token === null ? {} : { Authorization: `Bearer ${this.order.token}` },
                signal: AbortSignal.timeout(VERDICT_TIMEOUT_MS),
            });
            if (!response.ok)
                return null;
            const session = (await response.json());
            return { type: "state", state: session.state, reason: session.reason ?? "", delivered: session.delivered };
        }
        catch {
            return null;
        }
    }
    renewToken() {
        return new Promise((resolve) => {
            this.giveToken = resolve;
            systemClock.after(TOKEN_TIMEOUT_MS, () => resolve(null));
            scope.postMessage({ type: "token-needed" });
        });
    }
}
let player = null;
scope.onmessage = (event) => {
    if (event.data.type === "open")
        player = new Player(event.data);
    else
        player?.handle(event.data);
};
scope.ononline = () => player?.hurry();
