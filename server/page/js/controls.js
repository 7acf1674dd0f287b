/** Which keys are down. Repeats are swallowed; only known keys count. Pure. */
export class KeyTracker {
    known;
    down = new Set();
    constructor(known) {
        this.known = known;
    }
    takes(code) {
        return this.known.has(code);
    }
    press(code) {
        if (!this.takes(code) || this.down.has(code))
            return null;
        this.down.add(code);
        return { pressed: [code] };
    }
    release(code) {
        return this.down.delete(code) ? { released: [code] } : null;
    }
    releaseAll() {
        if (this.down.size === 0)
            return null;
        const released = [...this.down];
        this.down.clear();
        return { released };
    }
    get held() {
        return this.down;
    }
}
/** Pointer motion since it was last taken. Pure. */
export class PointerMotion {
    dx = 0;
    dy = 0;
    add(dx, dy) {
        this.dx += dx;
        this.dy += dy;
    }
    take() {
        if (this.dx === 0 && this.dy === 0)
            return null;
        const change = { pointerDx: this.dx, pointerDy: this.dy };
        this.dx = this.dy = 0;
        return change;
    }
}
/**
 * Keyboard and pointer of a page as controls. A window that loses the focus releases every key; keys typed into a field, or with
 * Ctrl, Alt or Meta, are left alone; pointer motion is sent once per animation frame.
 */
export class Controls {
    options;
    keys;
    motion = new PointerMotion();
    abort = new AbortController();
    animationFrame = 0;
    constructor(options) {
        this.options = options;
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
    press(code) {
        this.update(this.keys.press(code));
    }
    release(code) {
        this.update(this.keys.release(code));
    }
    releaseAll() {
        this.update(this.keys.releaseAll());
    }
    detach() {
        this.releaseAll();
        this.abort.abort();
        cancelAnimationFrame(this.animationFrame);
        if (document.pointerLockElement !== null)
            document.exitPointerLock();
    }
    onKeyDown(event) {
        if (event.ctrlKey || event.altKey || event.metaKey || isField(event.target) || !this.keys.takes(event.code))
            return;
        event.preventDefault();
        if (!event.repeat)
            this.press(event.code);
    }
    update(change) {
        if (change === null)
            return;
        this.options.send(change);
        this.options.onHeld?.(this.keys.held);
    }
    async lockPointer() {
        try {
            await this.options.pointerTarget?.requestPointerLock();
        }
        catch {
            // The browser may refuse, for example right after Escape; the next click asks again.
        }
    }
    onPointerMove(event) {
        if (this.options.pointerTarget === null || document.pointerLockElement !== this.options.pointerTarget)
            return;
        this.motion.add(event.movementX, event.movementY);
        this.animationFrame ||= requestAnimationFrame(() => {
            this.animationFrame = 0;
            const change = this.motion.take();
            if (change !== null)
                this.options.send(change);
        });
    }
}
function isField(target) {
    return target instanceof HTMLElement && (target.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName));
}
