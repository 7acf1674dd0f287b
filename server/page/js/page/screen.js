const CRISP_UP_TO_PIXELS = 320;
/** Holds what shows the session and keeps it as large as fits; small pictures by whole device pixels, so that they stay crisp. */
export class Screen {
    room;
    shown = null;
    width = 0;
    height = 0;
    constructor(room) {
        this.room = room;
        new ResizeObserver(() => this.fit()).observe(room);
    }
    /** A fresh pair; each serves one session, and one of them is shown by `open`. */
    replace() {
        const canvas = document.createElement("canvas");
        const video = document.createElement("video");
        video.muted = video.playsInline = true;
        for (const element of [canvas, video]) {
            element.hidden = true;
            element.tabIndex = 0;
            element.setAttribute("aria-label", "The world, as it is generated");
        }
        this.shown = null;
        this.room.replaceChildren(canvas, video);
        return { canvas, video };
    }
    open(shown, width, height) {
        if (this.shown === shown)
            return;
        if (this.shown !== null)
            this.shown.hidden = true;
        this.shown = shown;
        this.width = width;
        this.height = height;
        shown.hidden = false;
        this.fit();
    }
    /** The last picture stays, dimmed. */
    close() {
        this.shown?.classList.add("over");
    }
    fit() {
        if (this.shown === null || this.width === 0)
            return;
        const isSmall = Math.max(this.width, this.height) <= CRISP_UP_TO_PIXELS;
        const fitting = Math.min(this.room.clientWidth / this.width, this.room.clientHeight / this.height);
        const devicePixels = fitting * devicePixelRatio;
        const scale = isSmall && devicePixels >= 1 ? Math.floor(devicePixels) / devicePixelRatio : fitting;
        this.shown.classList.toggle("crisp", isSmall);
        this.shown.style.width = `${this.width * scale}px`;
        this.shown.style.height = `${this.height * scale}px`;
    }
}
