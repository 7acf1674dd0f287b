const CRISP_UP_TO_PIXELS = 320;

/** Holds the canvas of the session and keeps it as large as fits; small pictures by whole device pixels, so that they stay crisp. */
export class Screen {
  private canvas: HTMLCanvasElement | null = null;
  private width = 0;
  private height = 0;

  constructor(private readonly room: HTMLElement) {
    new ResizeObserver(() => this.fit()).observe(room);
  }

  /** A fresh canvas; each serves one session. It is shown by `open`. */
  replace(): HTMLCanvasElement {
    this.canvas = document.createElement("canvas");
    this.canvas.hidden = true;
    this.canvas.tabIndex = 0;
    this.canvas.setAttribute("aria-label", "The world, as it is generated");
    this.room.replaceChildren(this.canvas);
    return this.canvas;
  }

  open(width: number, height: number): void {
    this.width = width;
    this.height = height;
    if (this.canvas !== null) this.canvas.hidden = false;
    this.fit();
  }

  /** The last picture stays, dimmed. */
  close(): void {
    this.canvas?.classList.add("over");
  }

  private fit(): void {
    if (this.canvas === null || this.width === 0) return;
    const isSmall = Math.max(this.width, this.height) <= CRISP_UP_TO_PIXELS;
    const fitting = Math.min(this.room.clientWidth / this.width, this.room.clientHeight / this.height);
    const devicePixels = fitting * devicePixelRatio;
    const scale = isSmall && devicePixels >= 1 ? Math.floor(devicePixels) / devicePixelRatio : fitting;
    this.canvas.classList.toggle("crisp", isSmall);
    this.canvas.style.width = `${this.width * scale}px`;
    this.canvas.style.height = `${this.height * scale}px`;
  }
}
