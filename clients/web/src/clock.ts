/** Time as an argument, so that tests need not wait. */
export interface Clock {
  /** Milliseconds since the epoch, with fractions; the same in a page and its workers. */
  now(): number;
  /** Calls back once; returns how to cancel that. */
  after(delayMs: number, callback: () => void): () => void;
}

export const systemClock: Clock = {
  now: () => performance.timeOrigin + performance.now(),
  after(delayMs, callback) {
    const timer = setTimeout(callback, delayMs);
    return () => clearTimeout(timer);
  },
};
