import { elements } from "./elements.js";
const WHOLE = new Intl.NumberFormat("en");
export function showPhase(phase, words) {
    elements.phase.dataset["phase"] = phase;
    elements.phase.textContent = words;
}
export function showHint(parts) {
    elements.hint.hidden = parts === null;
    if (parts !== null)
        elements.hint.replaceChildren(...parts);
}
export function showMessage(text) {
    elements.message.hidden = text === null;
    elements.message.textContent = text ?? "";
}
export function showVerdict(verdict) {
    elements.verdict.hidden = verdict === null;
    elements.verdict.textContent = verdict?.text ?? "";
    elements.verdict.dataset["delivered"] = String(verdict?.isDelivered ?? false);
}
const CARRIERS = { webrtc: "WebRTC", datachannel: "Data channel", websocket: "WebSocket" };
/** `why`: the reason that it is not what was wanted. */
export function showCarrier(carrier, why) {
    elements.carrier.textContent = carrier === null ? "–" : CARRIERS[carrier];
    elements.carrier.title = why ?? "";
}
export function showLink(link) {
    elements.link.value = link ?? "";
    if (link !== null)
        elements.link.select();
}
export function showFigures(figures, window) {
    elements.fps.textContent = figures.fps === null ? "–" : figures.fps.toFixed(1);
    elements.latency.textContent = milliseconds(figures.latencyMs);
    elements.median.textContent = milliseconds(figures.medianLatencyMs);
    elements.shown.textContent = WHOLE.format(figures.shown);
    elements.received.textContent = WHOLE.format(figures.received);
    elements.decoded.textContent = WHOLE.format(figures.decoded);
    elements.window.textContent = window === null ? "–" : `${figures.received - figures.decoded} of ${window}`;
}
function milliseconds(value) {
    return value === null ? "–" : `${value.toFixed(0)} ms`;
}
export function showSetup(state) {
    const { isRunning, isBusy } = state;
    document.body.classList.toggle("locked", state.isLocked && !state.isWatching);
    document.body.classList.toggle("watching", state.isWatching);
    elements.model.disabled = isRunning || isBusy || elements.model.options.length === 0;
    elements.delivery.disabled = elements.seed.disabled = elements.dice.disabled = isRunning || isBusy;
    elements.prompt.disabled = isRunning ? !state.takesPrompt : !(state.model?.takesPrompt ?? true);
    elements.say.disabled = !state.takesPrompt;
    elements.pause.disabled = !isRunning || state.isEnding;
    elements.share.disabled = !isRunning || state.isEnding;
    elements.pause.textContent = state.isPaused ? "Play" : "Pause";
    elements.start.disabled = isBusy || (!isRunning && !state.isLocked && !state.isWatching && state.model === null);
    elements.start.dataset["does"] = isRunning ? "stop" : "start";
    const [begin, stop] = state.isWatching ? ["Watch", "Leave"] : ["Start", "Stop"];
    elements.start.textContent = !isRunning ? begin : state.isEnding ? "Leave now" : stop;
}
