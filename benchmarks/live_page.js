// Runs in a page: plays a live session by WebRTC and notes, for every frame, when it was generated and when it was decoded.
// Times are in milliseconds since 1970; `offsetMs` is what the server's monotonic clock lacks to that.
async ({ url, session, token, seconds, offsetMs }) => {
  const UUID = [0x6d, 0x1f, 0x9c, 0x52, 0x7b, 0x3e, 0x4f, 0x8a, 0x9a, 0x41, 0xd3, 0xc0, 0xe8, 0x5b, 0x27, 0xf6];
  const now = () => performance.timeOrigin + performance.now();

  // Seq and generation time of an access unit, from the number that it carries.
  const numberIn = (data) => {
    const bytes = new Uint8Array(data);
    for (let at = 0; at + 64 <= bytes.length; at += 1) {
      if (bytes[at] !== UUID[0] || UUID.some((value, index) => bytes[at + index] !== value)) continue;
      const digits = String.fromCharCode(...bytes.subarray(at + 16, at + 64));
      return { seq: parseInt(digits.slice(0, 16), 16), generatedMs: Number(BigInt(`0x${digits.slice(32, 48)}`) / 1000n) / 1000 + offsetMs };
    }
    return null;
  };

  const peer = new RTCPeerConnection({ encodedInsertableStreams: true });
  const received = new Map();
  const decodedMs = [];
  const pings = [];
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
      say({ type: "fin", decoded_count: received.size, last_seq: message.last_seq });
      ended(message.count);
    }
  };

  peer.ontrack = ({ track, receiver }) => {
    receiver.jitterBufferTarget = 0;
    const { readable, writable } = receiver.createEncodedStreams();
    const times = [];
    readable
      .pipeThrough(
        new TransformStream({
          transform: (frame, controller) => {
            const number = numberIn(frame.data);
            if (number !== null) {
              received.set(number.seq, { generatedMs: number.generatedMs, receivedMs: now() });
              times.push(number);
            }
            controller.enqueue(frame);
          },
        }),
      )
      .pipeTo(writable);
    const pictures = new MediaStreamTrackProcessor({ track, maxBufferSize: 30 }).readable.getReader();
    (async () => {
      for (;;) {
        const { value: picture, done } = await pictures.read();
        if (done) return;
        picture.close();
        const number = times.shift();
        firstPictureMs ??= now() - began;
        if (number !== undefined) decodedMs.push(now() - number.generatedMs);
      }
    })();
  };

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
  const lost = Array.from({ length: count ?? 0 }, (_, index) => index + 1).filter((seq) => !received.has(seq));
  const receivedMs = [...received.values()].map((one) => one.receivedMs - one.generatedMs);
  peer.close();
  return { count, received: received.size, lost, receivedMs, decodedMs, firstPictureMs, lastBitsPerS };
}
