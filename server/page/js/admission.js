import { delaysMs } from "./backoff.js";
import { ApiError, apiErrorOf, ConnectionLostError } from "./errors.js";
/** The server tells something every second. */
const LONGEST_SILENCE_MS = 10_000;
/**
 * Returns how the session stands once it waits in line no more. It is told by the server, not asked for by a timer: a page in
 * the background has slow timers, and its place waits for it only so long.
 *
 * Throws ApiError where the server refuses, ConnectionLostError after an outage, and whatever aborted the signal.
 */
export async function awaitAdmission(options) {
    const { clock, signal } = options;
    let delays = delaysMs(options.random);
    let giveUpAt = clock.now() + options.outageTimeoutMs;
    for (;;) {
        try {
            for await (const standing of follow(options)) {
                if (standing.state !== "queued")
                    return standing;
                delays = delaysMs(options.random);
                giveUpAt = clock.now() + options.outageTimeoutMs;
            }
        }
        catch (error) {
            if (error instanceof ApiError && !error.retryable && error.status < 500)
                throw error;
        }
        signal.throwIfAborted();
        if (clock.now() >= giveUpAt)
            throw new ConnectionLostError("The daemon can't be reached any more.");
        const delayMs = delays.next().value;
        await new Promise((resolve) => clock.after(delayMs, resolve));
    }
}
async function* follow({ sessionUrl, token, clock, signal }) {
    const headers = token === null ? {} : { Authorization: `Bearer ${token}` };
    const response = await fetch(`${sessionUrl}/events`, { headers, signal });
    if (!response.ok || response.body === null)
        throw apiErrorOf(response, await response.json().catch(() => null));
    const reader = response.body.getReader();
    const decoder = new TextDecoder();
    let text = "";
    try {
        for (;;) {
            const cancelWatch = clock.after(LONGEST_SILENCE_MS, () => void reader.cancel().catch(() => { }));
            const { done, value } = await reader.read().finally(cancelWatch);
            if (done)
                return;
            text += decoder.decode(value, { stream: true });
            const events = text.split("\n\n");
            text = events.pop() ?? "";
            for (const event of events) {
                const data = /^event: (?:state|closed)\ndata: (.*)$/.exec(event)?.[1];
                if (data !== undefined)
                    yield JSON.parse(data);
            }
        }
    }
    finally {
        void reader.cancel().catch(() => { });
    }
}
