"""Colours and pictures as the Python client decodes them."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from numpy.typing import NDArray
from tests.unit.client_fake_server import encoded_frames

from ithaka_client import DecodeError, Recorder, UsageError
from ithaka_client.backoff import LONGEST_DELAY_S, delays_s
from ithaka_client.decoder import Decoder
from ithaka_client.protocol import EncodedFrame

HEIGHT, WIDTH = 64, 128


def encode_exact(luma_HW: NDArray[np.uint8], u_hw: NDArray[np.uint8], v_hw: NDArray[np.uint8]) -> bytes:
    encoder = av.CodecContext.create("libx264", "w")
    assert isinstance(encoder, av.VideoCodecContext)
    encoder.width, encoder.height, encoder.pix_fmt, encoder.time_base = WIDTH, HEIGHT, "yuv420p", Fraction(1, 16)
    encoder.options = {"preset": "ultrafast", "tune": "zerolatency", "qp": "0"}
    samples = np.concatenate([luma_HW.reshape(-1), u_hw.reshape(-1), v_hw.reshape(-1)]).reshape(HEIGHT * 3 // 2, WIDTH)
    return b"".join(bytes(packet) for packet in encoder.encode(av.VideoFrame.from_ndarray(samples, format="yuv420p")))


def encoded(payload: bytes, seq: int = 1) -> EncodedFrame:
    return EncodedFrame(seq, seq - 1, 5, 0, 0, True, False, payload)


def test_samples_and_colours() -> None:
    """Flat blocks of 16×16, so that no chroma interpolation blurs the middle of one; a stream without colour tags."""
    random = np.random.default_rng(1)
    shape = (HEIGHT // 16, WIDTH // 16)
    y = random.integers(16, 236, shape).astype(np.uint8)
    u, v = (random.integers(16, 241, shape).astype(np.uint8) for _ in range(2))
    luma, u_hw, v_hw = (np.kron(blocks, np.ones((side, side), np.uint8)) for blocks, side in [(y, 16), (u, 8), (v, 8)])
    frame = Decoder(clock=lambda: 42.0).decode(encoded(encode_exact(luma, u_hw, v_hw)), 41.0)

    assert (frame.seq, frame.pts, frame.control_id, frame.received_at_s, frame.decoded_at_s) == (1, 0, 5, 41.0, 42.0)
    for plane, expected in zip(frame.yuv, (luma, u_hw, v_hw), strict=True):
        np.testing.assert_array_equal(plane, expected)

    assert frame.rgb.shape == (HEIGHT, WIDTH, 3) and frame.rgb.dtype == np.uint8
    scaled_y, scaled_u, scaled_v = (y - 16.0) / 219, (u - 128.0) / 224, (v - 128.0) / 224
    red, blue = scaled_y + 1.5748 * scaled_v, scaled_y + 1.8556 * scaled_u
    green = (scaled_y - 0.2126 * red - 0.0722 * blue) / 0.7152
    expected_rgb = np.clip(np.stack([red, green, blue], -1) * 255, 0, 255)
    middles = frame.rgb[8::16, 8::16].astype(float)
    assert np.abs(middles - expected_rgb).max() <= 1


def test_black_and_white_are_full_range() -> None:
    grey = np.full((HEIGHT // 2, WIDTH // 2), 128, np.uint8)
    for luma, value in ((16, 0), (235, 255)):
        frame = Decoder().decode(encoded(encode_exact(np.full((HEIGHT, WIDTH), luma, np.uint8), grey, grey)), 41.0)
        assert int(frame.rgb.min()) == int(frame.rgb.max()) == value


def test_what_is_no_picture_is_an_error_that_names_the_frame() -> None:
    with pytest.raises(DecodeError) as caught:
        Decoder().decode(encoded(b"\x00\x00\x00\x01garbage", seq=7), 41.0)
    assert caught.value.seq == 7


def test_a_decoder_needs_its_key_frame() -> None:
    with pytest.raises(DecodeError):
        Decoder().decode(encoded(encoded_frames(8)[2], seq=3), 41.0)


def test_a_closed_recorder_takes_no_frames(tmp_path: Path) -> None:
    with Recorder(tmp_path / "a.mp4", fps=16) as recorder:
        recorder.write(encoded(encoded_frames(8)[0]))
    recorder.close()
    with pytest.raises(UsageError):
        recorder.write(encoded(encoded_frames(8)[0]))


def test_delays_double_up_to_a_bound_and_are_spread() -> None:
    slow, quick = delays_s(lambda: 0.0), delays_s(lambda: 1.0)
    slowest = [next(slow) for _ in range(10)]
    assert slowest[:3] == [0.05, 0.1, 0.2] and slowest[-1] == LONGEST_DELAY_S
    assert [next(quick) for _ in range(10)] == [delay_s / 2 for delay_s in slowest]
