import type { HeldKeys } from "./held-keys.js";
import type { Hello, Wish } from "./protocol.js";

/** What one carrier leaves to the one that takes its place. */
export interface Takeover {
  readonly hello: Hello | null;
  readonly keys: HeldKeys;
  readonly lastControlId: number;
  readonly wish: Wish | null;
  /** The last one shown, for the other to begin with; it closes it. */
  readonly picture: VideoFrame | null;
}
