/** The page: choose a world, start, look, steer, stop, and read how it ended. */
import { Client, Controls, IthakaError } from "../index.js";
import { elements } from "./elements.js";
import { keepKey, readKey } from "./key.js";
import { KeyCaps } from "./key-caps.js";
import { listModels } from "./models.js";
import { Screen } from "./screen.js";
import { Stats } from "./stats.js";
import { showFigures, showHint, showMessage, showPhase, showSetup, showVerdict } from "./view.js";
import { explain, judge, needsKey, phaseWords } from "./words.js";
const LOOK_AGAIN_MS = 1_000;
const FIGURES_INTERVAL_MS = 250;
const SEEDS = 10_000;
class Page {
    client = new Client(location.href);
    model = null;
    session = null;
    controls = null;
    stats = new Stats();
    phase = "idle";
    state = "";
    isLocked = false;
    isBusy = false;
    isEnding = false;
    screen = new Screen(elements.screen);
    keyCaps = new KeyCaps(elements.keys);
    constructor() {
        elements.setup.addEventListener("submit", (event) => {
            event.preventDefault();
            if (document.activeElement === elements.prompt && this.session !== null)
                this.sendPrompt();
            else if (this.session === null)
                void this.start();
            else
                this.stop();
        });
        elements.dice.addEventListener("click", () => this.rollSeed());
        elements.say.addEventListener("click", () => this.sendPrompt());
        elements.pause.addEventListener("click", () => (this.state === "paused" ? this.session?.play() : this.session?.pause()));
        elements.model.addEventListener("change", () => void this.loadModels());
        window.addEventListener("hashchange", () => this.useKey(readKey()));
        window.addEventListener("pagehide", () => this.leave());
        window.addEventListener("pageshow", (event) => event.persisted && location.reload());
        setInterval(() => this.renderFigures(), FIGURES_INTERVAL_MS);
        this.rollSeed();
        this.useKey(readKey());
        void this.watchModels();
    }
    // -- before a session --------------------------------------------------------------------------------------------------
    useKey(key) {
        elements.key.value = key;
        this.client = new Client(location.href, { apiKey: key || undefined });
    }
    rollSeed() {
        elements.seed.value = String(Math.floor(Math.random() * SEEDS));
    }
    /** What can be served may change for as long as the page is open. */
    async watchModels() {
        for (;;) {
            if (this.session === null && !this.isBusy)
                await this.loadModels();
            await new Promise((resolve) => setTimeout(resolve, LOOK_AGAIN_MS));
        }
    }
    async loadModels() {
        try {
            this.model = listModels(elements.model, await this.client.models());
            this.isLocked = false;
            if (this.phase === "failed")
                this.setPhase("idle");
        }
        catch (error) {
            this.model = null;
            this.isLocked = needsKey(error);
            if (!this.isLocked)
                this.setPhase("failed");
        }
        this.render();
    }
    // -- a session's life --------------------------------------------------------------------------------------------------
    async start() {
        this.isBusy = true;
        showMessage(null);
        showVerdict(null);
        this.render();
        try {
            if (this.isLocked)
                await this.unlock();
            if (this.model !== null)
                await this.create(this.model);
        }
        catch (error) {
            if (!(error instanceof IthakaError))
                throw error;
            showMessage(explain(error));
            this.setPhase("idle");
        }
        finally {
            this.isBusy = false;
            this.render();
        }
    }
    async unlock() {
        keepKey(elements.key.value);
        this.useKey(elements.key.value);
        this.model = listModels(elements.model, await this.client.models());
        this.isLocked = false;
    }
    async create(model) {
        this.setPhase("connecting");
        this.stats = new Stats();
        const seed = elements.seed.valueAsNumber;
        this.session = await this.client.createSession({
            model: model.name,
            seed: Number.isSafeInteger(seed) ? seed : undefined,
            ...(model.takesPrompt ? { prompt: elements.prompt.value } : {}),
            canvas: this.screen.replace(),
            events: {
                phase: (phase) => this.setPhase(phase),
                state: ({ state }) => this.setState(state),
                connected: (_, numConnections) => numConnections === 1 && this.enter(),
                frame: (frame) => {
                    if (frame.seq === 1)
                        showHint(null);
                    this.stats.showFrame(frame);
                },
                ended: (outcome, error) => this.end(outcome, error),
            },
        });
        showHint(["The world is being opened …"]);
        this.setPhase("connecting");
    }
    /** The first connection is there. */
    enter() {
        const hello = this.session?.hello;
        if (!hello)
            return;
        this.screen.open(hello.width, hello.height);
        this.controls = new Controls({
            keys: hello.controls,
            pointerTarget: hello.takesPointer ? elements.screen : null,
            send: (change) => this.control(change),
            onHeld: (held) => this.keyCaps.hold(held),
        });
        this.keyCaps.show(hello.controls, hello.takesPointer, this.controls);
        elements.start.blur();
        this.render();
    }
    control(change) {
        const controlId = this.session?.control(change);
        if (controlId !== undefined)
            this.stats.sendControl(controlId, performance.timeOrigin + performance.now());
    }
    sendPrompt() {
        if (this.session?.hello?.takesPrompt)
            this.control({ prompt: elements.prompt.value });
    }
    /** First ask for the end and wait for the last frames; asked again, leave at once. */
    stop() {
        if (!this.isEnding && this.phase === "connected") {
            this.isEnding = true;
            this.session?.end();
            this.render();
            return;
        }
        this.leave();
        const { shown } = this.stats.figures(0);
        this.end({ delivered: false, state: "closed", reason: "left", lastSeq: shown, decodedCount: shown }, null);
    }
    /** Give the place on the server back without waiting for anything. */
    leave() {
        if (this.session === null)
            return;
        this.session.close();
        this.client.deleteSession(this.session.info.id, { force: true }).catch(() => { });
    }
    end(outcome, error) {
        this.session = null;
        this.isEnding = false;
        this.controls?.detach();
        this.controls = null;
        this.keyCaps.hide();
        this.screen.close();
        showHint(outcome.decodedCount > 0 ? null : ["No frame was shown."]);
        showMessage(error === null ? null : explain(error));
        showVerdict(outcome.decodedCount > 0 ? judge(outcome) : null);
        this.setPhase("ended");
        this.renderFigures();
    }
    // -- what is shown -----------------------------------------------------------------------------------------------------
    setPhase(phase) {
        this.phase = phase;
        this.render();
    }
    setState(state) {
        this.state = state;
        this.render();
    }
    render() {
        showPhase(this.phase, phaseWords(this.phase, this.state, this.session?.info.queuePosition ?? null));
        showSetup({
            model: this.model,
            isLocked: this.isLocked,
            isBusy: this.isBusy,
            isRunning: this.session !== null,
            isEnding: this.isEnding,
            isPaused: this.state === "paused",
            takesPrompt: this.session?.hello?.takesPrompt ?? false,
        });
    }
    renderFigures() {
        const now = performance.timeOrigin + performance.now();
        showFigures(this.stats.figures(now), this.session?.hello?.window ?? null);
    }
}
new Page();
