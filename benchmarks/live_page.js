// Runs in a page: plays a live session by WebRTC and notes, for every frame, when it was generated and when it was decoded.
// Nothing stands in the track's way (a transform of encoded frames costs a hop through a busy thread): pictures are told apart by
// their RTP time, and a viewer's WebSocket tells when each was generated.
// Times are in milliseconds since 1970; `offsetMs` is what the server's monotonic clock lacks to that.
async ({ url, session, token, viewerToken, fps, seconds, offsetMs }) => {
  const UUID = [0x6d, 0x1f, 0x9c, 0x52, 0x7b, 0x3e, 0x4f, 0x8a, 0x9a, 0x41, 0xd3, 0xc0, 0xe8, 0x5b, 0x27, 0xf6];
  const now = () => performance.timeOrigin + performance.now();

  // Generation time of an access unit, from the numbers that it carries.
  const generatedMsIn = (data) => {
    const bytes = new Uint8Array(data);
    for (let at = 0; at + 64 <= bytes.length; at += 1) {
      if (bytes[at] !== UUID[0] || UUID.some((value, index) => bytes[at + index] !== value)) continue;
      const digits = String.fromCharCode(...bytes.subarray(at + 16, at + 64));
      return Number(BigInt(`0x${digits.slice(32, 48)}`) / 1000n) / 1000 + offsetMs;
    }
    return null;
  };

  const peer = new RTCPeerConnection();
  const generatedMs = new Map();
  const sentMs = [];
  const decodedAtMs = new Map();
  const transceiver = peer.addTransceiver("video", { direction: "recvonly" });
  const codecs = RTCRtpReceiver.getCapabilities("video").codecs;
  transceiver.setCodecPreferences(codecs.filter(({ mimeType }) => /h264|rtx/i.test(mimeType)));
  const channel = peer.createDataChannel("ithaka");
  const began = now();
  let firstPictureMs = null;
  let ended;
  const over = new Promise((resolve) => (ended = resolve));

  channel.onmessage = ({ data }) => {
    const message = JSON.parse(data);
    const say = (body) => channel.send(JSON.stringify(body));
    if (message.type === "hello") say({ type: "resume", stream: message.stream, next_seq: message.next_seq });
    if (message.type === "ping") say({ type: "pong", id: message.id });
    if (message.type === "eos") {
      say({ type: "fin", decoded_count: decodedAtMs.size, last_seq: message.last_seq });
      ended(message.count);
    }
  };

  peer.ontrack = ({ track, receiver }) => {
    receiver.jitterBufferTarget = 0;
    const pictures = new MediaStreamTrackProcessor({ track, maxBufferSize: 30 }).readable.getReader();
    (async () => {
      // The session begins when its controller is there, so the first picture is the first frame.
      let firstRtp = null;
      for (;;) {
        const { value: picture, done } = await pictures.read();
        if (done) return;
        const { rtpTimestamp } = picture.metadata();
        picture.close();
        firstPictureMs ??= now() - began;
        firstRtp ??= rtpTimestamp;
        decodedAtMs.set(Math.round((((rtpTimestamp - firstRtp) >>> 0) * fps) / 90000), now());
      }
    })();
  };

  const viewer = new WebSocket(`${url.replace(/^http/, "ws")}/v1/sessions/${session}/stream`, ["ithaka.v1", `ithaka.token.${viewerToken}`]);
  viewer.binaryType = "arraybuffer";
  viewer.onmessage = ({ data }) => {
    if (typeof data === "string") {
      const message = JSON.parse(data);
      if (message.type === "hello") viewer.send(JSON.stringify({ type: "resume", stream: message.stream, next_seq: message.next_seq }));
      if (message.type === "ping") viewer.send(JSON.stringify({ type: "pong", id: message.id }));
    } else {
      const header = new DataView(data);
      generatedMs.set(Number(header.getBigUint64(16)), generatedMsIn(data));
      sentMs.push(header.getUint32(36));
    }
  };
  await new Promise((resolve) => (viewer.onopen = resolve));

  await peer.setLocalDescription(await peer.createOffer());
  const answer = await fetch(`${url}/v1/sessions/${session}/webrtc`, {
    method: "POST",
    headers: { "Content-Type": "application/json", Authorization: `Bearer ${token}` },
    body: JSON.stringify({ type: "offer", sdp: peer.localDescription.sdp }),
  });
  await peer.setRemoteDescription({ type: "answer", sdp: (await answer.json()).sdp });
  await new Promise((resolve) => setTimeout(resolve, seconds * 1000));
  const inbound = async () => [...(await peer.getStats()).values()].find(({ type, kind }) => type === "inbound-rtp" && kind === "video");
  const before = await inbound();
  await new Promise((resolve) => setTimeout(resolve, 2000));
  const after = await inbound();
  const lastBitsPerS = (8000 * (after.bytesReceived - before.bytesReceived)) / (after.timestamp - before.timestamp);
  channel.send(JSON.stringify({ type: "end" }));
  const count = await Promise.race([over, new Promise((resolve) => setTimeout(() => resolve(null), 5000))]);
  await new Promise((resolve) => setTimeout(resolve, 300));
  const lost = Array.from({ length: count ?? 0 }, (_, pts) => pts).filter((pts) => !decodedAtMs.has(pts));
  const decodedMs = [...decodedAtMs].filter(([pts]) => generatedMs.has(pts)).map(([pts, atMs]) => atMs - generatedMs.get(pts));
  const inBrowserMs = (1000 * after.totalProcessingDelay) / after.framesDecoded;
  peer.close();
  viewer.close();
  return { count, decoded: decodedAtMs.size, lost, sentMs, decodedMs, inBrowserMs, firstPictureMs, lastBitsPerS };
}
