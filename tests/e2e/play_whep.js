// Runs in a page: a WHEP library that is not ours plays a session. Returns what the browser's own counters and pictures say.
async ({ url, token, seconds, library }) => {
  const { WHEPClient } = await import(library);
  const peer = new RTCPeerConnection();
  peer.addTransceiver("video", { direction: "recvonly" });
  peer.addTransceiver("audio", { direction: "recvonly" });
  const video = document.createElement("video");
  video.muted = true;
  document.body.append(video);
  const began = performance.now();
  const firstPicture = new Promise((resolve, reject) => {
    peer.ontrack = ({ track }) => {
      if (track.kind !== "video") return;
      video.srcObject = new MediaStream([track]);
      video.play().catch(reject);
      video.requestVideoFrameCallback(() => resolve(performance.now() - began));
    };
  });
  const player = new WHEPClient();
  await player.view(peer, url, token);
  const firstPictureMs = await firstPicture;
  await new Promise((resolve) => setTimeout(resolve, seconds * 1000));
  const inbound = [...(await peer.getStats()).values()].find((entry) => entry.type === "inbound-rtp" && entry.kind === "video");
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [video.videoWidth, video.videoHeight];
  canvas.getContext("2d").drawImage(video, 0, 0);
  const picture = canvas.toDataURL("image/png");
  const address = player.resourceURL.href;
  await player.stop();
  return { firstPictureMs, framesDecoded: inbound.framesDecoded, width: video.videoWidth, picture, address };
}
