function find(id, kind) {
    const element = document.getElementById(id);
    if (!(element instanceof kind))
        throw new Error(`the page has no ${kind.name} #${id}`);
    return element;
}
/** The page's parts, by what they are. */
export const elements = {
    phase: find("phase", HTMLParagraphElement),
    screen: find("screen", HTMLDivElement),
    hint: find("hint", HTMLParagraphElement),
    setup: find("setup", HTMLFormElement),
    key: find("key", HTMLInputElement),
    model: find("model", HTMLSelectElement),
    delivery: find("delivery", HTMLSelectElement),
    seed: find("seed", HTMLInputElement),
    dice: find("dice", HTMLButtonElement),
    prompt: find("prompt", HTMLInputElement),
    say: find("say", HTMLButtonElement),
    start: find("start", HTMLButtonElement),
    pause: find("pause", HTMLButtonElement),
    link: find("link", HTMLInputElement),
    share: find("share", HTMLButtonElement),
    message: find("message", HTMLParagraphElement),
    verdict: find("verdict", HTMLParagraphElement),
    keys: find("keys", HTMLElement),
    fps: find("fps", HTMLElement),
    latency: find("latency", HTMLElement),
    median: find("median", HTMLElement),
    shown: find("shown", HTMLElement),
    received: find("received", HTMLElement),
    decoded: find("decoded", HTMLElement),
    carrier: find("carrier", HTMLElement),
    window: find("window", HTMLElement),
};
