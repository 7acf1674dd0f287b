import { ApiError } from "../index.js";
/** What to do about an error, where the server's own words don't say. */
const ADVICE = {
    key_missing: "Enter the daemon's key and press Start.",
    key_invalid: "Check the key and press Start again.",
    token_invalid: "Press Start for a new session.",
    token_expired: "Press Start for a new session.",
    session_unknown: "It may have ended while the connection was lost. Press Start for a new one.",
    detach_timeout: "The connection was away for too long. Press Start for a new session.",
    controller_connected: "Close the other page that steers this session, or start a new one here.",
    model_unavailable: "The daemon's log says why the model did not load.",
    decode_failed: "Reload the page; if it stays, try another browser.",
};
/** Why a session ended, for codes that come without words. */
const REASONS = {
    family_failed: "The model failed; the daemon's log says how.",
    worker_lost: "The model's workers were lost; they come back by themselves.",
    encoder_lost: "The encoder was lost; it comes back by itself.",
    server_stopping: "The daemon stops.",
    max_duration: "The session reached the longest time the daemon allows.",
    queue_timeout: "No place became free in time.",
};
const ACCESS_CODES = new Set(["key_missing", "key_invalid"]);
export function needsKey(error) {
    return error instanceof ApiError && ACCESS_CODES.has(error.code);
}
/** An error in words, with what to do. */
export function explain(error) {
    const waitS = error instanceof ApiError ? error.retryAfterSeconds : null;
    const again = waitS === null ? "Press Start to try again." : `Try again in ${waitS} s.`;
    const advice = ADVICE[error.code] ?? (error.retryable ? again : "");
    return [REASONS[error.code], error.message, advice].filter(Boolean).join(" ");
}
export function judge(outcome) {
    const shown = outcome.decodedCount;
    const frames = (count) => (count === 1 ? "1 frame" : `${count} frames`);
    if (outcome.delivered === true)
        return { isDelivered: true, text: `Delivered: all ${frames(shown)} arrived, confirmed by the daemon.` };
    if (outcome.delivered === false) {
        return { isDelivered: false, text: `Not delivered: ${frames(shown)} arrived; the daemon did not get the confirmation of all.` };
    }
    return { isDelivered: false, text: `${frames(shown)} arrived; how the session ended could not be learnt.` };
}
/** Where nothing promises every picture. */
export function tell(shown, isWatching) {
    const pictures = shown === 1 ? "1 picture" : `${shown} pictures`;
    return { isDelivered: true, text: isWatching ? `You saw ${pictures}.` : `Live: ${pictures} shown, each the newest there was.` };
}
const STATES = {
    streaming: "Streaming",
    paused: "Paused",
    draining: "Finishing",
};
export function phaseWords(phase, state, queuePosition) {
    switch (phase) {
        case "idle":
            return "Not connected";
        case "connecting":
            return queuePosition === null ? "Connecting" : `Waiting in line, place ${queuePosition}`;
        case "connected":
            return STATES[state] ?? "Connected";
        case "reconnecting":
            return "Connection lost, trying again";
        case "ended":
            return "Ended";
        case "failed":
            return "The daemon can't be reached";
    }
}
