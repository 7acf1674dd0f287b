// Runs in the page: a live session by the client library, shown in an element of its own. Says what carried it, by which path, and when.
async ({ model, waitFor, timeoutMs }) => {
  const { Client } = await import("/js/index.js");
  const video = document.createElement("video");
  const canvas = document.createElement("canvas");
  video.muted = true;
  document.body.append(video, canvas);
  const began = performance.now();
  return await new Promise((resolve, reject) => {
    const seen = { path: null, carrier: null, why: null, carrierMs: null, frames: 0, outcome: null, error: null };
    let session = null;
    const count = () => {
      seen.frames += 1;
      if (seen.frames === waitFor) void note().then(() => session.end());
    };
    // How this side reaches the other, where WebRTC does.
    const note = async () => {
      if (seen.carrier !== "webrtc") return;
      const stats = await session.track.link.peer.getStats();
      const pair = [...stats.values()].find(({ type, nominated }) => type === "candidate-pair" && nominated);
      const { candidateType, relayProtocol } = stats.get(pair.localCandidateId);
      seen.path = { type: candidateType, ...(relayProtocol ? { relayProtocol } : {}) };
    };
    const watch = () => video.requestVideoFrameCallback(() => (count(), watch()));
    watch();
    const events = {
      carrier: (carrier, why) => Object.assign(seen, { carrier, why, carrierMs: performance.now() - began }),
      frame: count,
      ended: (outcome, error) => resolve({ ...seen, outcome, error }),
    };
    const options = { model, video, canvas, events, ...(timeoutMs ? { webRtcTimeoutMs: timeoutMs } : {}) };
    new Client(location.href).createLiveSession(options).then((made) => (session = made), reject);
  });
}
