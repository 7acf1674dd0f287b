import type { Clock } from "./clock.js";
import { CLOSED_NORMALLY, closeError, ConnectionLostError, type ErrorReport, IthakaError, ProtocolError } from "./errors.js";
import {
  buildPong,
  type EncodedFrame,
  type EndOfStream,
  type Hello,
  parseFrame,
  parseMessage,
  type StateChanged,
  SUBPROTOCOL,
  TOKEN_SUBPROTOCOL_PREFIX,
} from "./protocol.js";

/** What a connection needs of a WebSocket. */
export interface Socket {
  binaryType: string;
  readonly protocol: string;
  onopen: ((event: Event) => void) | null;
  onmessage: ((event: MessageEvent) => void) | null;
  onclose: ((event: CloseEvent) => void) | null;
  send(text: string): void;
  close(code?: number, reason?: string): void;
}

export type SocketFactory = (url: string, protocols: string[]) => Socket;

export interface ConnectionListener {
  onHello(hello: Hello): void;
  onFrame(frame: EncodedFrame): void;
  onState(state: StateChanged): void;
  onEndOfStream(end: EndOfStream): void;
  /** Exactly once, and the last call. Null: the server closed normally. */
  onClosed(error: IthakaError | null): void;
}

const CLIENT_GAVE_UP = 4000;
/** The server pings every 10 s; a connection that is silent for three of them is dead, whatever the browser thinks. */
const LONGEST_SILENCE_MS = 30_000;

/** One WebSocket, or one data channel, of a stream: opened, spoken over, lost. It never reconnects; the stream does. */
export class Connection {
  private readonly socket: Socket;
  private said: ErrorReport | null = null;
  private hasHello = false;
  private isClosed = false;
  private heardAt: number;
  private cancelWatch: () => void = () => {};

  constructor(
    private readonly clock: Clock,
    openSocket: SocketFactory,
    url: string,
    token: string | null,
    private readonly listener: ConnectionListener,
  ) {
    this.socket = openSocket(url, token === null ? [SUBPROTOCOL] : [SUBPROTOCOL, TOKEN_SUBPROTOCOL_PREFIX + token]);
    this.socket.binaryType = "arraybuffer";
    this.heardAt = clock.now();
    this.watch();
    this.socket.onmessage = (event) => this.receive(event.data);
    this.socket.onclose = (event) => {
      const isNormal = event.code === CLOSED_NORMALLY && this.said === null;
      this.finish(isNormal ? null : closeError(event.code, this.said, event.reason));
    };
  }

  /** Ignored once closed: whatever was lost with a connection is made up for after the next resume. */
  send(text: string): void {
    if (!this.isClosed) this.socket.send(text);
  }

  /** Leave without a further word to the listener. */
  close(): void {
    this.isClosed = true;
    this.cancelWatch();
    this.socket.onmessage = this.socket.onclose = null;
    this.socket.close(CLIENT_GAVE_UP, "");
  }

  /** Close because of `error`, and tell the listener. */
  fail(error: IthakaError): void {
    if (this.isClosed) return;
    this.close();
    this.listener.onClosed(error);
  }

  private receive(data: unknown): void {
    this.heardAt = this.clock.now();
    try {
      if (typeof data === "string") this.handle(data);
      else if (!this.hasHello) throw new ProtocolError("a frame came before hello");
      else this.listener.onFrame(parseFrame(data as ArrayBuffer));
    } catch (error) {
      this.fail(error instanceof IthakaError ? error : new IthakaError("internal", String(error)));
    }
  }

  private handle(text: string): void {
    const message = parseMessage(text);
    switch (message.type) {
      case "hello":
        this.hasHello = true;
        this.listener.onHello(message);
        break;
      case "ping":
        this.send(buildPong(message.id));
        break;
      case "state":
        this.listener.onState(message);
        break;
      case "eos":
        this.listener.onEndOfStream(message);
        break;
      case "error":
        this.said = message;
        break;
      case "numbered":
      case "unknown":
        break;
    }
  }

  private finish(error: IthakaError | null): void {
    if (this.isClosed) return;
    this.isClosed = true;
    this.cancelWatch();
    this.listener.onClosed(error);
  }

  private watch(): void {
    const remainingMs = this.heardAt + LONGEST_SILENCE_MS - this.clock.now();
    if (remainingMs <= 0) this.fail(new ConnectionLostError("The server fell silent."));
    else this.cancelWatch = this.clock.after(remainingMs, () => this.watch());
  }
}
