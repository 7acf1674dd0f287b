/** What the page's own address names, if anything. */
export function readLink(hash) {
    const given = new URLSearchParams(hash.replace(/^#/, ""));
    const sessionId = given.get("watch");
    const token = given.get("viewer");
    return sessionId && token ? { sessionId, token } : null;
}
export function linkTo({ sessionId, token }, page) {
    const url = new URL(page);
    url.hash = new URLSearchParams({ watch: sessionId, viewer: token }).toString();
    return url.href;
}
