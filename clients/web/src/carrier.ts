/** What brings the pictures. "webrtc": a track, which may lose some. */
export type Carrier = "websocket" | "datachannel" | "webrtc";
