const FIRST_DELAY_MS = 50;
const LONGEST_DELAY_MS = 2000;
/** Delays between attempts to reconnect: doubling from 50 ms to 2 s, each spread by up to half. `random` gives 0 to 1. */
export function* delaysMs(random) {
    for (let delayMs = FIRST_DELAY_MS;; delayMs = Math.min(2 * delayMs, LONGEST_DELAY_MS)) {
        yield delayMs * (1 - 0.5 * random());
    }
}
