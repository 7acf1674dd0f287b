// Runs in the page: a session without a canvas; the samples that a canvas would show of its last picture, RGBA, row by row.
async ({ model, seed, maxFrames }) => {
  const { Client } = await import("/js/index.js");
  return await new Promise((resolve, reject) => {
    let rgba = null;
    const events = {
      frame: ({ seq, picture }) => {
        if (seq === maxFrames) {
          const { displayWidth: width, displayHeight: height } = picture;
          const context = new OffscreenCanvas(width, height).getContext("2d");
          context.drawImage(picture, 0, 0);
          rgba = Array.from(context.getImageData(0, 0, width, height).data);
        }
        picture.close();
      },
      ended: (outcome, error) => (error === null ? resolve(rgba) : reject(new Error(error.message))),
    };
    new Client(location.href).createSession({ model, seed, pixels: "exact", pacing: "unpaced", maxFrames, events }).catch(reject);
  });
};
