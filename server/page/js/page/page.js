/** The page: choose a world, start, look, steer, stop, and read how it ended. */
import { Client, Controls, IthakaError, LiveSession, } from "../index.js";
import { elements } from "./elements.js";
import { keepKey, readKey } from "./key.js";
import { KeyCaps } from "./key-caps.js";
import { linkTo, readLink } from "./link.js";
import { listModels } from "./models.js";
import { Pictures } from "./pictures.js";
import { Screen } from "./screen.js";
import { Stats } from "./stats.js";
import { showCarrier, showFigures, showHint, showLink, showMessage, showPhase, showSetup, showVerdict } from "./view.js";
import { explain, judge, needsKey, phaseWords, tell } from "./words.js";
const LOOK_AGAIN_MS = 1_000;
const FIGURES_INTERVAL_MS = 250;
const SEEDS = 10_000;
class Page {
    client = new Client(location.href);
    model = null;
    /** What a link asks for. */
    watched = readLink(location.hash);
    session = null;
    hello = null;
    /** Shows the session, once it is known what carries it. */
    shown = null;
    pictures = null;
    isLive = false;
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
        elements.share.addEventListener("click", () => void this.share());
        elements.model.addEventListener("change", () => void this.loadModels());
        window.addEventListener("hashchange", () => (readLink(location.hash) === null ? this.useKey(readKey()) : location.reload()));
        window.addEventListener("pagehide", () => this.leave());
        window.addEventListener("pageshow", (event) => event.persisted && location.reload());
        setInterval(() => this.renderFigures(), FIGURES_INTERVAL_MS);
        this.rollSeed();
        this.useKey(readKey());
        if (this.watched === null)
            void this.watchModels();
        else
            void this.start();
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
            if (this.watched !== null)
                await this.watch(this.watched);
            else {
                if (this.isLocked)
                    await this.unlock();
                if (this.model !== null)
                    await this.create(this.model);
            }
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
        const seed = elements.seed.valueAsNumber;
        const wish = {
            model: model.name,
            seed: Number.isSafeInteger(seed) ? seed : undefined,
            ...(model.takesPrompt ? { prompt: elements.prompt.value } : {}),
        };
        const delivery = elements.delivery.value;
        this.isLive = delivery.startsWith("live");
        const shown = this.prepare();
        if (this.isLive) {
            const carrier = delivery === "live-websocket" ? "websocket" : "webrtc";
            this.session = await this.client.createLiveSession({ ...wish, ...shown, carrier });
        }
        else {
            const carrier = delivery === "lossless-datachannel" ? "datachannel" : "websocket";
            this.session = await this.client.createSession({ ...wish, canvas: shown.canvas, events: shown.events, carrier });
        }
        this.awaitPictures();
    }
    async watch(watched) {
        this.session = await this.client.watch({ ...watched, ...this.prepare() });
        this.awaitPictures();
    }
    /** Where the session is shown, and what the page does with what it tells. */
    prepare() {
        this.setPhase("connecting");
        this.stats = new Stats();
        const { canvas, video } = this.screen.replace();
        return {
            canvas,
            video,
            events: {
                carrier: (carrier, why) => this.carry(carrier, why, carrier === "webrtc" ? video : canvas),
                phase: (phase) => this.setPhase(phase),
                state: ({ state }) => this.setState(state),
                connected: (hello, numConnections) => numConnections === 1 && this.enter(hello),
                frame: (frame) => {
                    showHint(null);
                    this.reveal();
                    this.stats.showFrame(frame);
                },
                ended: (outcome, error) => this.end(outcome, error),
            },
        };
    }
    awaitPictures() {
        if (this.hello === null)
            showHint(["The world is being opened …"]);
        this.render();
    }
    carry(carrier, why, shown) {
        showCarrier(carrier, why);
        this.pictures?.stop();
        // Where a carrier takes another's place, the last picture stays until the next one is there.
        const isTakeover = this.shown !== null;
        this.shown = shown;
        if (shown instanceof HTMLVideoElement) {
            this.pictures = new Pictures(shown, (count, at, rtpTimestamp) => {
                showHint(null);
                const known = this.session instanceof LiveSession && rtpTimestamp !== undefined ? this.session.frameAt(rtpTimestamp) : null;
                this.stats.showPicture(count, at, known?.controlId ?? 0);
            });
        }
        if (!isTakeover)
            this.reveal();
    }
    /** The first connection is there. */
    enter(hello) {
        this.hello = hello;
        this.reveal();
        this.setPhase("connected");
        elements.start.blur();
        if (hello.role === "viewer")
            return;
        this.controls = new Controls({
            keys: hello.controls,
            pointerTarget: hello.takesPointer ? elements.screen : null,
            send: (change) => this.control(change),
            onHeld: (held) => this.keyCaps.hold(held),
        });
        this.keyCaps.show(hello.controls, hello.takesPointer, this.controls);
    }
    reveal() {
        if (this.shown !== null && this.hello !== null)
            this.screen.open(this.shown, this.hello.width, this.hello.height);
    }
    /** A link for those who only look. */
    async share() {
        if (this.session === null)
            return;
        const sessionId = this.session.info.id;
        try {
            showLink(linkTo({ sessionId, token: await this.client.viewerToken(sessionId) }, location.href));
        }
        catch (error) {
            if (!(error instanceof IthakaError))
                throw error;
            showMessage(explain(error));
        }
    }
    control(change) {
        const controlId = this.session?.control(change);
        if (controlId !== undefined)
            this.stats.sendControl(controlId, performance.timeOrigin + performance.now());
    }
    sendPrompt() {
        if (this.hello?.takesPrompt)
            this.control({ prompt: elements.prompt.value });
    }
    /** First ask for the end and wait for the last frames; asked again, leave at once. */
    stop() {
        if (!this.isEnding && this.phase === "connected" && this.watched === null) {
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
        if (this.watched !== null)
            return;
        this.client.deleteSession(this.session.info.id, { force: true }).catch(() => { });
    }
    end(outcome, error) {
        const { shown } = this.stats.figures(0);
        this.session = this.hello = this.shown = null;
        this.isEnding = false;
        this.pictures?.stop();
        this.pictures = null;
        showCarrier(null, null);
        showLink(null);
        this.controls?.detach();
        this.controls = null;
        this.keyCaps.hide();
        this.screen.close();
        const hasShown = outcome.decodedCount > 0 || shown > 0;
        showHint(hasShown ? null : ["No frame was shown."]);
        showMessage(error === null ? null : explain(error));
        const isWatching = this.watched !== null;
        showVerdict(!hasShown ? null : isWatching || this.isLive ? tell(shown, isWatching) : judge(outcome));
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
            isWatching: this.watched !== null,
            takesPrompt: this.watched === null && (this.hello?.takesPrompt ?? false),
        });
    }
    renderFigures() {
        const now = performance.timeOrigin + performance.now();
        showFigures(this.stats.figures(now), this.shown instanceof HTMLVideoElement ? null : (this.hello?.window ?? null));
    }
}
new Page();
