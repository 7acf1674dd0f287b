const STORED_AS = "ithaka.key";
/** The key from `#token=…`, which then leaves the address, or the one this tab was given before. */
export function readKey() {
    const given = new URLSearchParams(location.hash.slice(1)).get("token");
    if (given !== null) {
        sessionStorage.setItem(STORED_AS, given);
        history.replaceState(null, "", location.pathname + location.search);
    }
    return sessionStorage.getItem(STORED_AS) ?? "";
}
export function keepKey(key) {
    sessionStorage.setItem(STORED_AS, key);
}
