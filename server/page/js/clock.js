export const systemClock = {
    now: () => performance.timeOrigin + performance.now(),
    after(delayMs, callback) {
        const timer = setTimeout(callback, delayMs);
        return () => clearTimeout(timer);
    },
};
