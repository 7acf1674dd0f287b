/** Which keys are held down, so that a new connection can tell the server the truth about all of them. */
export class HeldKeys {
    held = new Set();
    touched = new Set();
    prompt = null;
    apply(controlId, change) {
        for (const key of change.pressed ?? []) {
            this.touched.add(key);
            this.held.add(key);
        }
        for (const key of change.released ?? []) {
            this.touched.add(key);
            this.held.delete(key);
        }
        if (change.prompt !== undefined)
            this.prompt = { controlId, text: change.prompt };
    }
    /** A frame used this control; prompts up to it have arrived. */
    confirm(controlId) {
        if (this.prompt !== null && this.prompt.controlId <= controlId)
            this.prompt = null;
    }
    /** All keys ever touched as they are now, and a prompt that no frame has used yet; null if there is nothing to tell. */
    snapshot() {
        if (this.touched.size === 0 && this.prompt === null)
            return null;
        return {
            pressed: [...this.held].sort(),
            released: [...this.touched].filter((key) => !this.held.has(key)).sort(),
            ...(this.prompt === null ? {} : { prompt: this.prompt.text }),
        };
    }
}
