import type { ControlChange } from "./protocol.js";

export type ControlSink = (change: ControlChange) => void;

/** Which keys are down. Repeats are swallowed; only known keys count. Pure. */
export class KeyTracker {
  private readonly down = new Set<string>();

  constructor(private readonly known: ReadonlySet<string>) {}

  takes(code: string): boolean {
    return this.known.has(code);
  }

  press(code: string): ControlChange | null {
    if (!this.takes(code) || this.down.has(code)) return null;
    this.down.add(code);
    return { pressed: [code] };
  }

  release(code: string): ControlChange | null {
    return this.down.delete(code) ? { released: [code] } : null;
  }

  releaseAll(): ControlChange | null {
    if (this.down.size === 0) return null;
    const released = [...this.down];
    this.down.clear();
    return { released };
  }

  get held(): ReadonlySet<string> {
    return this.down;
  }
}

/** Pointer motion since it was last taken. Pure. */
export class PointerMotion {
  private dx = 0;
  private dy = 0;

  add(dx: number, dy: number): void {
    this.dx += dx;
    this.dy += dy;
  }

  take(): ControlChange | null {
    if (this.dx === 0 && this.dy === 0) return null;
    const change = { pointerDx: this.dx, pointerDy: this.dy };
    this.dx = this.dy = 0;
    return change;
  }
}

export interface ControlOptions {
  /** KeyboardEvent.code of the keys the model obeys. */
  readonly keys: readonly string[];
  /** A click locks the pointer to this element and its motion is sent; null: the model takes no pointer. */
  readonly pointerTarget: HTMLElement | null;
  readonly send: ControlSink;
  /** For display: the keys held now. */
  readonly onHeld?: (held: ReadonlySet<string>) => void;
}

/**
 * Keyboard and pointer of a page as controls. A window that loses the focus releases every key; keys typed into a field, or with
 * Ctrl, Alt or Meta, are left alone; pointer motion is sent once per animation frame.
 */
export class Controls {
  private readonly keys: KeyTracker;
  private readonly motion = new PointerMotion();
  private readonly abort = new AbortController();
  private animationFrame = 0;

  constructor(private readonly options: ControlOptions) {
    this.keys = new KeyTracker(new Set(options.keys));
    const { signal } = this.abort;
    window.addEventListener("keydown", (event) => this.onKeyDown(event), { signal });
    window.addEventListener("keyup", (event) => this.update(this.keys.release(event.code)), { signal });
    window.addEventListener("blur", () => this.releaseAll(), { signal });
    document.addEventListener("visibilitychange", () => document.hidden && this.releaseAll(), { signal });
    options.pointerTarget?.addEventListener("click", () => void this.lockPointer(), { signal });
    document.addEventListener("pointermove", (event) => this.onPointerMove(event), { signal });
  }

  /** For buttons on the screen. */
  press(code: string): void {
    this.update(this.keys.press(code));
  }

  release(code: string): void {
    this.update(this.keys.release(code));
  }

  releaseAll(): void {
    this.update(this.keys.releaseAll());
  }

  detach(): void {
    this.releaseAll();
    this.abort.abort();
    cancelAnimationFrame(this.animationFrame);
    if (document.pointerLockElement !== null) document.exitPointerLock();
  }

  private onKeyDown(event: KeyboardEvent): void {
    if (event.ctrlKey || event.altKey || event.metaKey || isField(event.target) || !this.keys.takes(event.code)) return;
    event.preventDefault();
    if (!event.repeat) this.press(event.code);
  }

  private update(change: ControlChange | null): void {
    if (change === null) return;
    this.options.send(change);
    this.options.onHeld?.(this.keys.held);
  }

  private async lockPointer(): Promise<void> {
    try {
      await this.options.pointerTarget?.requestPointerLock();
    } catch {
      // The browser may refuse, for example right after Escape; the next click asks again.
    }
  }

  private onPointerMove(event: PointerEvent): void {
    if (this.options.pointerTarget === null || document.pointerLockElement !== this.options.pointerTarget) return;
    this.motion.add(event.movementX, event.movementY);
    this.animationFrame ||= requestAnimationFrame(() => {
      this.animationFrame = 0;
      const change = this.motion.take();
      if (change !== null) this.options.send(change);
    });
  }
}

function isField(target: EventTarget | null): boolean {
  return target instanceof HTMLElement && (target.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName));
}
