"""A load client: many sessions at once, declared frames against received ones. Needs ``ithaka-client[bench]`` for WebRTC."""
