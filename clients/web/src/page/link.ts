/** A link that opens the page on a session that another page steers. */
export interface Watched {
  readonly sessionId: string;
  readonly token: string;
}

/** What the page's own address names, if anything. */
export function readLink(hash: string): Watched | null {
  const given = new URLSearchParams(hash.replace(/^#/, ""));
  const sessionId = given.get("watch");
  const token = given.get("viewer");
  return sessionId && token ? { sessionId, token } : null;
}

export function linkTo({ sessionId, token }: Watched, page: string): string {
  const url = new URL(page);
  url.hash = new URLSearchParams({ watch: sessionId, viewer: token }).toString();
  return url.href;
}
