/** Counts what a video element shows, for as long as it lives in the page. */
export class Pictures {
  private handle = 0;

  constructor(
    private readonly video: HTMLVideoElement,
    /** `count`: pictures shown so far; `at`: milliseconds since the epoch. */
    private readonly onShown: (count: number, at: number, rtpTimestamp: number | undefined) => void,
  ) {
    this.listen();
  }

  stop(): void {
    this.video.cancelVideoFrameCallback(this.handle);
  }

  private listen(): void {
    this.handle = this.video.requestVideoFrameCallback((now, { presentedFrames, rtpTimestamp }) => {
      this.onShown(presentedFrames, performance.timeOrigin + now, rtpTimestamp);
      this.listen();
    });
  }
}
