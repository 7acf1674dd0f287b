/**
 * The worker that owns the WebSocket, or an end of the page's data channel, the decoder and the canvas of one session, so that a tab in the background keeps
 * acknowledging. Pictures are acknowledged when they are decoded, and drawn when they are due.
 */
import { ChannelSocket } from "./channel-socket.js";
import { systemClock } from "./clock.js";
import type { Socket } from "./connection.js";
import { FrameDecoder, type ReceivedFrame } from "./decoder.js";
import { type ConnectionLostError, type IthakaError, reportOf } from "./errors.js";
import { Presenter } from "./presenter.js";
import type { EncodedFrame, Hello, StateChanged } from "./protocol.js";
import { type Outcome, type Phase, Stream, type StreamListener } from "./stream.js";
import type { FromWorker, ToWorker } from "./worker-messages.js";

/** The part of DedicatedWorkerGlobalScope that is used; the DOM's types know no workers. */
interface WorkerScope {
  onmessage: ((event: MessageEvent<ToWorker>) => void) | null;
  ononline: (() => void) | null;
  postMessage(message: FromWorker, transfer?: Transferable[]): void;
  close(): void;
}

interface DecodedPicture {
  readonly frame: ReceivedFrame;
  readonly chunk: number;
  readonly picture: VideoFrame;
  readonly decodedAt: number;
}

const VERDICT_TIMEOUT_MS = 5_000;
const TOKEN_TIMEOUT_MS = 5_000;
const LINGER_MS = 1_000;

const scope = self as unknown as WorkerScope;

class Player implements StreamListener {
  private readonly stream: Stream;
  private readonly context: OffscreenCanvasRenderingContext2D | null;
  private decoder: FrameDecoder | null = null;
  private presenter: Presenter<DecodedPicture> | null = null;
  private giveToken: ((token: string | null) => void) | null = null;
  private channel: MessagePort | null;

  constructor(private readonly order: Extract<ToWorker, { type: "open" }>) {
    this.context = order.canvas?.getContext("2d", { alpha: false, desynchronized: true }) ?? null;
    this.channel = order.channel ?? null;
    if (order.picture) this.begin(order.picture);
    this.stream = new Stream(
      {
        url: order.streamUrl,
        token: order.token,
        openSocket: (url, protocols): Socket => (this.channel === null ? new WebSocket(url, protocols) : new ChannelSocket(this.channel)),
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
      },
      this,
    );
    this.stream.start();
  }

  handle(message: ToWorker): void {
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

  hurry(): void {
    this.stream.hurry();
  }

  // -- what the stream tells ---------------------------------------------------------------------------------------------

  onPhase(phase: Phase): void {
    scope.postMessage({ type: "phase", phase });
  }

  onConnected(hello: Hello): void {
    this.decoder?.close();
    this.decoder = new FrameDecoder(hello, {
      onPicture: (frame, picture) => this.receivePicture(frame, picture),
      onBroken: (cause) => this.stream.restart(cause),
    });
    this.presenter ??= this.openPresenter(hello);
    scope.postMessage({ type: "connected", hello, numConnections: this.stream.numConnections });
  }

  onFrame(frame: EncodedFrame): void {
    this.decoder?.decode({ ...frame, receivedAt: systemClock.now() });
  }

  onLastFrame(): void {
    this.decoder?.flush();
  }

  onState(state: StateChanged): void {
    scope.postMessage({ type: "state", state });
  }

  onEnded(outcome: Outcome, error: IthakaError | null): void {
    this.presenter?.drain();
    this.decoder?.close();
    scope.postMessage({ type: "ended", outcome, error: error === null ? null : reportOf(error) });
    // The last picture reaches the screen some time after it was drawn, and not from a worker that is gone.
    systemClock.after(LINGER_MS, () => scope.close());
  }

  // -- pictures ------------------------------------------------------------------------------------------------------------

  private openPresenter(hello: Hello): Presenter<DecodedPicture> {
    this.size(hello.width, hello.height);
    return new Presenter(systemClock, 1000 / hello.fps, this.order.isPaced ? hello.window : 0, (decoded) => this.show(decoded));
  }

  /** With what another carrier showed last. */
  private begin(picture: VideoFrame): void {
    this.size(picture.displayWidth, picture.displayHeight);
    this.context?.drawImage(picture, 0, 0);
    picture.close();
  }

  private size(width: number, height: number): void {
    const { canvas } = this.order;
    // Also to the same size it would be cleared.
    if (canvas === null || (canvas.width === width && canvas.height === height)) return;
    canvas.width = width;
    canvas.height = height;
  }

  private receivePicture(frame: ReceivedFrame, picture: VideoFrame): void {
    if (this.stream.confirm(frame.seq)) {
      this.presenter?.push({ frame, chunk: frame.chunk, picture, decodedAt: systemClock.now() });
    } else {
      picture.close();
    }
  }

  private show({ frame, picture, decodedAt }: DecodedPicture): void {
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

  private fallBack(lost: ConnectionLostError): boolean {
    if (this.channel === null) return false;
    this.channel = null;
    scope.postMessage({ type: "carrier", carrier: "websocket", why: lost.message });
    return true;
  }

  // -- what only the page or the HTTP side knows ---------------------------------------------------------------------------

  private async fetchVerdict(): Promise<StateChanged | null> {
    try {
      const response = await fetch(this.order.sessionUrl, {
        headers: this.order.token === null ? {} : { Authorization: `Bearer ${this.order.token}` },
        signal: AbortSignal.timeout(VERDICT_TIMEOUT_MS),
      });
      if (!response.ok) return null;
      const session = (await response.json()) as { state: string; reason: string | null; delivered: boolean | null };
      return { type: "state", state: session.state, reason: session.reason ?? "", delivered: session.delivered };
    } catch {
      return null;
    }
  }

  private renewToken(): Promise<string | null> {
    return new Promise((resolve) => {
      this.giveToken = resolve;
      systemClock.after(TOKEN_TIMEOUT_MS, () => resolve(null));
      scope.postMessage({ type: "token-needed" });
    });
  }
}

let player: Player | null = null;
scope.onmessage = (event) => {
  if (event.data.type === "open") player = new Player(event.data);
  else player?.handle(event.data);
};
scope.ononline = () => player?.hurry();
