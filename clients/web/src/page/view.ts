import type { Carrier, ModelInfo } from "../index.js";
import { elements } from "./elements.js";
import type { Figures } from "./stats.js";
import type { Verdict } from "./words.js";

const WHOLE = new Intl.NumberFormat("en");

/** What the form allows. */
export interface SetupState {
  readonly model: ModelInfo | null;
  readonly isLocked: boolean;
  readonly isBusy: boolean;
  readonly isRunning: boolean;
  readonly isEnding: boolean;
  readonly isPaused: boolean;
  /** The session is another page's. */
  readonly isWatching: boolean;
  /** Prompts can be sent to the running session. */
  readonly takesPrompt: boolean;
}

export function showPhase(phase: string, words: string): void {
  elements.phase.dataset["phase"] = phase;
  elements.phase.textContent = words;
}

export function showHint(parts: readonly (string | Node)[] | null): void {
  elements.hint.hidden = parts === null;
  if (parts !== null) elements.hint.replaceChildren(...parts);
}

export function showMessage(text: string | null): void {
  elements.message.hidden = text === null;
  elements.message.textContent = text ?? "";
}

export function showVerdict(verdict: Verdict | null): void {
  elements.verdict.hidden = verdict === null;
  elements.verdict.textContent = verdict?.text ?? "";
  elements.verdict.dataset["delivered"] = String(verdict?.isDelivered ?? false);
}

const CARRIERS: Readonly<Record<Carrier, string>> = { webrtc: "WebRTC", datachannel: "Data channel", websocket: "WebSocket" };

/** `why`: the reason that it is not what was wanted. */
export function showCarrier(carrier: Carrier | null, why: string | null): void {
  elements.carrier.textContent = carrier === null ? "–" : CARRIERS[carrier];
  elements.carrier.title = why ?? "";
}

export function showLink(link: string | null): void {
  elements.link.value = link ?? "";
  if (link !== null) elements.link.select();
}

export function showFigures(figures: Figures, window: number | null): void {
  elements.fps.textContent = figures.fps === null ? "–" : figures.fps.toFixed(1);
  elements.latency.textContent = milliseconds(figures.latencyMs);
  elements.median.textContent = milliseconds(figures.medianLatencyMs);
  elements.shown.textContent = WHOLE.format(figures.shown);
  elements.received.textContent = WHOLE.format(figures.received);
  elements.decoded.textContent = WHOLE.format(figures.decoded);
  elements.window.textContent = window === null ? "–" : `${figures.received - figures.decoded} of ${window}`;
}

function milliseconds(value: number | null): string {
  return value === null ? "–" : `${value.toFixed(0)} ms`;
}

export function showSetup(state: SetupState): void {
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
