"""One H.264 stream: what goes in comes out, tagged, in order, with key frames where they belong."""

from __future__ import annotations

from collections.abc import Iterable

import av
import numpy as np
import numpy.typing as npt
import pytest

from ithaka.workers.contract import Pixels
from ithaka.workers.encoding.codec_string import codec_string
from ithaka.workers.encoding.encoder import AccessUnit, H264Encoder, StreamSettings
from ithaka.workers.encoding.errors import EncoderOpenError, EncoderSizeError, FrameOrderError

Picture = npt.NDArray[np.uint8]
NAL_SLICE, NAL_IDR, NAL_SEI, NAL_SPS, NAL_PPS = 1, 5, 6, 7, 8


def settings(
    width: int = 64,
    height: int = 48,
    fps: int = 16,
    pixels: Pixels = "exact",
    crf: int = 20,
    preset: str = "veryfast",
    key_frame_interval_s: float = 2.0,
) -> StreamSettings:
    return StreamSettings(width, height, fps, pixels, crf, preset, key_frame_interval_s)


def noise(width: int, height: int, seed: int) -> Picture:
    """Every sample random, 0 and 255 among them: the worst for any rounding."""
    return np.random.default_rng(seed).integers(0, 256, (height * 3 // 2, width), np.uint8)


def smooth(width: int, height: int, shift: int) -> Picture:
    y, x = np.mgrid[: height * 3 // 2, :width]
    values: Picture = (128 + 60 * np.sin((x + shift) / 9) + 40 * np.cos(y / 7)).astype(np.uint8)
    return values


def encode(encoder: H264Encoder, pictures: Iterable[Picture]) -> list[tuple[bytes, bool]]:
    units = [encoder.encode(picture.data.cast("B"), pts, is_key=False) for pts, picture in enumerate(pictures)]
    return [(bytes(unit.data), unit.is_key) for unit in units]


def decode(units: Iterable[bytes]) -> list[av.VideoFrame]:
    decoder = av.VideoCodecContext.create("h264", "r")
    frames = [frame for unit in units for frame in decoder.decode(av.Packet(unit))]
    return frames + decoder.decode(None)


def nal_types(unit: bytes) -> list[int]:
    return [part[0] & 0x1F for part in unit.replace(b"\x00\x00\x00\x01", b"\x00\x00\x01").split(b"\x00\x00\x01")[1:]]


@pytest.mark.parametrize("size", [(16, 16), (64, 48), (130, 98)], ids=str)
def test_exact_gives_the_samples_back_bit_for_bit(size: tuple[int, int]) -> None:
    pictures = [noise(*size, seed) for seed in range(6)] + [smooth(*size, shift) for shift in range(6)]
    encoder = H264Encoder(settings(*size))
    frames = decode(unit for unit, _ in encode(encoder, pictures))
    assert len(frames) == len(pictures)
    for frame, picture in zip(frames, pictures, strict=True):
        assert frame.format.name == "yuv420p"
        assert (frame.to_ndarray() == picture).all()


@pytest.mark.parametrize("preset", ["ultrafast", "veryfast", "medium"])
def test_lossy_is_close(preset: str) -> None:
    pictures = [smooth(160, 96, shift) for shift in range(20)]
    frames = decode(unit for unit, _ in encode(H264Encoder(settings(160, 96, pixels="lossy", preset=preset)), pictures))
    assert len(frames) == len(pictures)
    for frame, picture in zip(frames, pictures, strict=True):
        difference = np.abs(frame.to_ndarray().astype(int) - picture)
        assert 0 < difference.mean() < 2


def test_lossy_at_crf_0_still_opens_and_is_exact() -> None:
    pictures = [noise(64, 48, seed) for seed in range(3)]
    frames = decode(unit for unit, _ in encode(H264Encoder(settings(pixels="lossy", crf=0)), pictures))
    assert all((frame.to_ndarray() == picture).all() for frame, picture in zip(frames, pictures, strict=True))


@pytest.mark.parametrize("pixels", ["lossy", "exact"])
def test_the_stream_says_bt709_limited_range(pixels: Pixels) -> None:
    frames = decode(unit for unit, _ in encode(H264Encoder(settings(pixels=pixels)), [smooth(64, 48, 0)]))
    (frame,) = frames
    bt709, limited = 1, 1
    assert (frame.colorspace, frame.color_primaries, frame.color_trc, frame.color_range) == (bt709, bt709, bt709, limited)


@pytest.mark.parametrize(
    ("pixels", "size", "fps", "codec"),
    [
        ("lossy", (128, 128), 16, "avc1.42C00A"),
        ("lossy", (832, 480), 16, "avc1.42C01E"),
        ("lossy", (1280, 720), 30, "avc1.42C01F"),
        ("lossy", (1920, 1080), 30, "avc1.42C028"),
        ("exact", (832, 480), 16, "avc1.F4001E"),
    ],
)
def test_codec_string_follows_profile_size_and_rate(pixels: Pixels, size: tuple[int, int], fps: int, codec: str) -> None:
    encoder = H264Encoder(settings(*size, fps=fps, pixels=pixels))
    assert encoder.codec == codec
    ((unit, _),) = encode(encoder, [smooth(*size, 0)])
    assert codec_string(unit) == codec


@pytest.mark.parametrize("pixels", ["lossy", "exact"])
def test_key_frames_carry_their_parameter_sets_and_others_none(pixels: Pixels) -> None:
    units = encode(H264Encoder(settings(pixels=pixels)), [smooth(64, 48, 3 * shift) for shift in range(70)])
    assert [number for number, (_, is_key) in enumerate(units) if is_key] == [0, 32, 64]
    for unit, is_key in units:
        types = [kind for kind in nal_types(unit) if kind != NAL_SEI]
        assert types == ([NAL_SPS, NAL_PPS, NAL_IDR] if is_key else [NAL_SLICE])


def test_a_scene_cut_makes_no_key_frame_of_its_own() -> None:
    pictures = [smooth(64, 48, 0)] * 5 + [noise(64, 48, 1)] * 5
    assert [is_key for _, is_key in encode(H264Encoder(settings(pixels="lossy")), pictures)] == [True] + [False] * 9


def test_a_key_frame_on_request_starts_the_interval_anew() -> None:
    encoder = H264Encoder(settings(fps=4, key_frame_interval_s=1.0))
    picture = smooth(64, 48, 0).data.cast("B")
    keys = [pts for pts in range(12) if encoder.encode(picture, pts, is_key=pts == 2).is_key]
    assert keys == [0, 2, 6, 10]


def test_the_interval_counts_media_time_not_frames() -> None:
    encoder = H264Encoder(settings(fps=10, key_frame_interval_s=1.0))
    picture = smooth(64, 48, 0).data.cast("B")
    keys = [pts for pts in (0, 3, 9, 12, 13, 21, 22, 40) if encoder.encode(picture, pts, is_key=False).is_key]
    assert keys == [0, 12, 22, 40]


def test_decoding_can_start_at_any_key_frame() -> None:
    pictures = [smooth(64, 48, 3 * shift) for shift in range(12)]
    encoder = H264Encoder(settings())
    units: list[AccessUnit] = []
    data = []
    for pts, picture in enumerate(pictures):
        units.append(encoder.encode(picture.data.cast("B"), pts, is_key=pts == 7))
        data.append(bytes(units[-1].data))
    frames = decode(data[7:])
    assert len(frames) == 5
    assert all((frame.to_ndarray() == picture).all() for frame, picture in zip(frames, pictures[7:], strict=True))


def test_the_frame_may_be_overwritten_at_once() -> None:
    buffer = noise(64, 48, 0)
    encoder = H264Encoder(settings())
    expected, data = [], []
    for pts in range(8):
        buffer[:] = noise(64, 48, pts)
        expected.append(buffer.copy())
        data.append(bytes(encoder.encode(buffer.data.cast("B"), pts, is_key=False).data))
        buffer[:] = 0
    assert all((frame.to_ndarray() == picture).all() for frame, picture in zip(decode(data), expected, strict=True))


def test_the_frame_is_read_from_memory_that_nobody_may_write() -> None:
    picture = noise(64, 48, 0)
    unit = H264Encoder(settings()).encode(memoryview(picture.tobytes()), 0, is_key=False)
    (frame,) = decode([bytes(unit.data)])
    assert (frame.to_ndarray() == picture).all()


@pytest.mark.parametrize("size", [(63, 48), (64, 47), (14, 48), (64, 0), (-64, 48), (4098, 48), (64, 4098)], ids=str)
def test_sizes_out_of_range_are_refused(size: tuple[int, int]) -> None:
    with pytest.raises(EncoderSizeError, match="it must be even"):
        H264Encoder(settings(*size))


@pytest.mark.parametrize("fps", [0, -1, 241])
def test_rates_out_of_range_are_refused(fps: int) -> None:
    with pytest.raises(EncoderSizeError, match="fps"):
        H264Encoder(settings(fps=fps))


def test_settings_that_the_codec_refuses_are_an_error() -> None:
    with pytest.raises(EncoderOpenError):
        H264Encoder(settings(pixels="lossy", preset="no such preset"))


@pytest.mark.parametrize("pts", [4, 5])
def test_time_must_grow(pts: int) -> None:
    encoder = H264Encoder(settings())
    picture = smooth(64, 48, 0).data.cast("B")
    encoder.encode(picture, 5, is_key=False)
    with pytest.raises(FrameOrderError):
        encoder.encode(picture, pts, is_key=False)


@pytest.mark.parametrize("headers", [b"", b"\x00\x00\x01", b"\x00\x00\x01\x67\x42", b"\x00\x00\x01\x68\xce\x06\xf2"])
def test_headers_without_a_parameter_set_are_an_error(headers: bytes) -> None:
    with pytest.raises(ValueError, match="no sequence parameter set"):
        codec_string(headers)


def test_the_parameter_set_is_found_behind_others() -> None:
    assert codec_string(b"\x00\x00\x01\x09\xf0\x00\x00\x00\x01\x67\x42\xe0\x1f\xda") == "avc1.42E01F"
