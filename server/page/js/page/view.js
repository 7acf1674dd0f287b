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
    document.body.classList.toggle("locked", state.isLocked);
    elements.model.disabled = isRunning || isBusy || elements.model.options.length === 0;
    elements.seed.disabled = elements.dice.disabled = isRunning || isBusy;
    elements.prompt.disabled = isRunning ? !state.takesPrompt : !(state.model?.takesPrompt ?? true);
    elements.say.disabled = !state.takesPrompt;
    elements.pause.disabled = !isRunning || state.isEnding;
    elements.pause.textContent = state.isPaused ? "Play" : "Pause";
    elements.start.disabled = isBusy || (!isRunning && !state.isLocked && state.model === null);
    elements.start.dataset["does"] = isRunning ? "stop" : "start";
    elements.start.textContent = !isRunning ? "Start" : state.isEnding ? "Leave now" : "Stop";
}
