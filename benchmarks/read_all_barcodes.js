// Runs in the page: a session without a canvas, whose every picture is read. Layout: workers/families/synthetic/barcode.py.
async ({ model, pacing, maxFrames, carrier }) => {
  const { Client } = await import("/js/index.js");
  const ROWS = 5;
  const COLUMNS = 16;

  const crc16 = (bytes) => {
    let crc = 0xffff;
    for (const byte of bytes) {
      crc ^= byte << 8;
      for (let bit = 0; bit < 8; bit += 1) crc = crc & 0x8000 ? (crc << 1) ^ 0x1021 : crc << 1;
      crc &= 0xffff;
    }
    return crc;
  };

  // The number in a luma plane, or null when its check fails.
  const numberIn = (luma, stride, side) => {
    const words = Array.from({ length: ROWS }, (_, row) => {
      let word = 0;
      for (let column = 0; column < COLUMNS; column += 1) {
        const middle = luma[(row + 0.5) * side * stride + (column + 0.5) * side];
        word = (word << 1) | (middle > 126 ? 1 : 0);
      }
      return word;
    });
    const bytes = words.slice(0, 4).flatMap((word) => [word >> 8, word & 255]);
    return crc16(bytes) === words[4] ? words[0] * 65536 + words[1] : null;
  };

  const read = async (picture) => {
    const { width, height } = picture.visibleRect;
    const side = 8 * Math.min(4, Math.floor(width / 128), Math.floor(height / 64));
    const samples = new Uint8Array(picture.allocationSize());
    const [luma] = await picture.copyTo(samples);
    picture.close();
    return numberIn(samples.subarray(luma.offset), luma.stride, side);
  };

  return await new Promise((resolve, reject) => {
    const seqs = [];
    const numbers = [];
    const decodedMs = [];
    const carriers = [];
    const events = {
      carrier: (name, why) => carriers.push([name, why]),
      frame: ({ seq, picture, ageMs, receivedAt, decodedAt }) => {
        seqs.push(seq);
        decodedMs.push(ageMs + decodedAt - receivedAt);
        numbers.push(read(picture));
      },
      ended: async (outcome, error) => resolve({ seqs, numbers: await Promise.all(numbers), decodedMs, carriers, outcome, error }),
    };
    new Client(location.href).createSession({ model, pacing, maxFrames, carrier, events }).catch(reject);
  });
};
