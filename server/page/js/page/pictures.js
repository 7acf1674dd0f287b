/** Counts what a video element shows, for as long as it lives in the page. */
export class Pictures {
    video;
    onShown;
    handle = 0;
    constructor(video, 
    /** `count`: pictures shown so far; `at`: milliseconds since the epoch. */
    onShown) {
        this.video = video;
        this.onShown = onShown;
        this.listen();
    }
    stop() {
        this.video.cancelVideoFrameCallback(this.handle);
    }
    listen() {
        this.handle = this.video.requestVideoFrameCallback((now, { presentedFrames, rtpTimestamp }) => {
            this.onShown(presentedFrames, performance.timeOrigin + now, rtpTimestamp);
            this.listen();
        });
    }
}
