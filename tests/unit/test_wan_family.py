"""The labyrinth as the runtime sees it: the shipped weights, sessions, and what it refuses."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from ithaka.workers.families.base import Controls, FamilyInputError, FamilyLoadError, StepInput
from ithaka.workers.families.wan.checksums import record_checksums
from ithaka.workers.families.wan.family import MAX_PROMPT_CHARACTERS, MAX_SEED, WanWorld, load
from ithaka.workers.families.wan.weights_folder import MAX_FILE_BYTES, SHIPPED, load_world_model

TENSORS = "diffusion_pytorch_model"


def _load(**options: Any) -> WanWorld:
    return load(model="labyrinth", options=options, device=torch.device("cpu"), rank=0, num_ranks=1, communicator=None)


@pytest.fixture(scope="module")
def family() -> WanWorld:
    return _load(dtype="float32")


def _walk(family: WanWorld, *controls: Controls, seed: int = 1, prompt: str = "garden", frames: int = 4) -> torch.Tensor:
    session = family.open_session("s", seed=seed, prompt=prompt, options={})
    pictures = []
    for chunk in range(frames):
        given = controls[min(chunk, len(controls) - 1)]
        picture = family.step(session, StepInput("s", chunk, given), lambda: None)
        assert picture is not None
        pictures.append(picture)
    family.close_session(session)
    return torch.cat(pictures)


def _difference(a: torch.Tensor, b: torch.Tensor) -> float:
    return (a.float() - b.float()).abs().mean().item()


def test_a_step_yields_one_rgb_frame(family: WanWorld) -> None:
    pictures = _walk(family, Controls(), frames=2)
    spec = family.spec
    assert pictures.shape == (2, spec.height, spec.width, 3) == (2, 128, 128, 3)
    assert pictures.dtype == torch.uint8 and pictures.is_contiguous()
    assert spec.chunk_frames == 1 and spec.takes_prompt and spec.takes_pointer


def test_the_same_seed_walks_the_same_way(family: WanWorld) -> None:
    ahead = Controls(held=frozenset({"KeyW"}))
    assert torch.equal(_walk(family, ahead), _walk(family, ahead))
    assert _difference(_walk(family, ahead), _walk(family, ahead, seed=2)) > 5


@pytest.mark.parametrize("key", ["KeyW", "KeyS", "KeyA", "KeyD", "ArrowLeft", "ArrowRight"])
def test_every_key_moves_the_picture(family: WanWorld, key: str) -> None:
    still = _walk(family, Controls())
    moved = _walk(family, Controls(held=frozenset({key})))
    assert _difference(still[-1], moved[-1]) > 1
    tapped = _walk(family, Controls(tapped=frozenset({key})), Controls(), frames=1)
    assert _difference(still[:1], tapped) > 0.2


def test_the_pointer_turns_like_the_arrow_keys(family: WanWorld) -> None:
    keyed = _walk(family, Controls(held=frozenset({"ArrowRight"})))
    pointed = _walk(family, Controls(pointer_dx=40.0))
    assert torch.equal(keyed, pointed)


def test_a_prompt_chooses_the_look_and_changes_it_on_the_way(family: WanWorld) -> None:
    day, night = _walk(family, Controls(), prompt="a sunny garden"), _walk(family, Controls(), prompt="at NIGHT")
    assert day.float().mean() > 1.5 * night.float().mean()
    switched = _walk(family, Controls(), Controls(prompt="midnight, stars"), Controls(), frames=6)
    assert switched[0].float().mean() > 1.5 * switched[-1].float().mean()


@pytest.mark.parametrize("prompt", ["", "zzz qqq", "x" * MAX_PROMPT_CHARACTERS])
def test_a_prompt_without_known_words_still_walks(family: WanWorld, prompt: str) -> None:
    assert _walk(family, Controls(), prompt=prompt, frames=1).float().std() > 5


@pytest.mark.parametrize("steps", [1, 3, 4])
def test_other_numbers_of_steps_work(steps: int) -> None:
    assert _walk(_load(steps=steps), Controls(), frames=2).float().std() > 5


@pytest.mark.parametrize("seed", [0, MAX_SEED])
def test_seeds_at_the_ends_of_the_range_work(family: WanWorld, seed: int) -> None:
    assert _walk(family, Controls(), seed=seed, prompt="", frames=1).shape[0] == 1


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"seed": -1}, "seed must be between"),
        ({"seed": MAX_SEED + 1}, "seed must be between"),
        ({"prompt": "x" * (MAX_PROMPT_CHARACTERS + 1)}, "at most 2000"),
        ({"options": {"colour": "red"}}, "no session options, but got: colour"),
    ],
)
def test_a_session_out_of_range_is_refused(family: WanWorld, given: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {"seed": 1, "prompt": "", "options": {}, **given}
    with pytest.raises(FamilyInputError, match=message):
        family.open_session("s", **arguments)


def test_a_prompt_too_long_on_the_way_is_refused(family: WanWorld) -> None:
    with pytest.raises(FamilyInputError, match="at most 2000"):
        _walk(family, Controls(prompt="x" * (MAX_PROMPT_CHARACTERS + 1)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": 9}, "samples in 1, 2, 3, 4 steps, not 9"),
        ({"steps": "two"}, "`steps`: Input should be a valid integer"),
        ({"steps": True}, "`steps`: Input should be a valid integer"),
        ({"dtype": "int4"}, "`dtype`: Input should be 'auto', 'float32' or 'bfloat16'"),
        ({"stepz": 2}, "the option `stepz`: is no option of the model"),
        ({"weights": 3}, "`weights`: Input is not a valid path"),
        ({"weights": "/nowhere/at/all"}, "no weights at /nowhere/at/all.*Reinstall ithaka, or train"),
    ],
)
def test_bad_model_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(FamilyLoadError, match=message):
        _load(**options)


def test_the_shipped_folder_is_small_and_whole() -> None:
    files = [path for path in SHIPPED.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= 20_000_000
    assert max(path.stat().st_size for path in files) <= MAX_FILE_BYTES
    assert (SHIPPED / "README.md").is_file()
    for name in ("transformer", "autoencoder", "prompt_encoder"):
        assert json.loads((SHIPPED / name / "config.json").read_text())["_class_name"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(SHIPPED, tmp_path / "weights"))


def test_a_folder_from_elsewhere_loads(folder: Path) -> None:
    assert str(folder) in _load(weights=str(folder)).spec.weights


@pytest.mark.parametrize("part", ["transformer", "autoencoder", "prompt_encoder", "starts"])
def test_cut_off_tensors_are_told(folder: Path, part: str) -> None:
    file = next((folder / part).glob("*.safetensors"))
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(FamilyLoadError, match=f"{part}/.*is not the file that was exported.*reinstall"):
        load_world_model(folder)
    record_checksums(folder)
    with pytest.raises(FamilyLoadError, match=f"{part} can't be read.*reinstall"):
        load_world_model(folder)


@pytest.mark.parametrize(
    "name",
    [
        f"transformer/{TENSORS}-00001-of-00002.safetensors",
        f"transformer/{TENSORS}-00002-of-00002.safetensors",
        f"transformer/{TENSORS}.safetensors.index.json",
        f"autoencoder/{TENSORS}.safetensors",
        f"starts/{TENSORS}.safetensors",
        "prompt_encoder/config.json",
    ],
)
def test_a_flipped_bit_is_told_with_the_name_of_the_file(folder: Path, name: str) -> None:
    data = bytearray((folder / name).read_bytes())
    data[len(data) // 2] ^= 1
    (folder / name).write_bytes(data)
    with pytest.raises(FamilyLoadError, match=f"{name} is not the file that was exported: its sha256 differs.*reinstall"):
        load_world_model(folder)


@pytest.mark.parametrize("part", ["transformer", "autoencoder", "prompt_encoder", "starts"])
def test_missing_tensors_are_told(folder: Path, part: str) -> None:
    next((folder / part).glob("*.safetensors")).unlink()
    with pytest.raises(FamilyLoadError, match=f"{part}/.* can't be read.*reinstall"):
        load_world_model(folder)


def _change(file: Path, **tensors: torch.Tensor) -> None:
    save_file({**load_file(file), **tensors}, file)
    record_checksums(file.parents[1])


def test_tensors_of_another_model_are_told(folder: Path) -> None:
    _change(folder / "autoencoder" / f"{TENSORS}.safetensors", extra=torch.zeros(1))
    with pytest.raises(FamilyLoadError, match="autoencoder does not fit this model"):
        load_world_model(folder)


def test_values_that_are_no_numbers_are_told(folder: Path) -> None:
    file = folder / "prompt_encoder" / f"{TENSORS}.safetensors"
    words = load_file(file)["words.weight"]
    _change(file, **{"words.weight": torch.full_like(words, float("nan"))})
    with pytest.raises(FamilyLoadError, match="not numbers"):
        load_world_model(folder)


def test_beginnings_of_another_shape_are_told(folder: Path) -> None:
    _change(folder / "starts" / f"{TENSORS}.safetensors", controls=torch.zeros(1, 1, 1, 3))
    with pytest.raises(FamilyLoadError, match="no beginnings of walks"):
        load_world_model(folder)


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("model_index.json", "{", "can't be read"),
        ("model_index.json", "[]", "not a JSON object"),
        ("model_index.json", "{}", "names no sha256 of its files"),
        ("model_index.json", '{"sha256": {}}', "config that does not fit"),
        ("model_index.json", '{"sampling": {"levels": {"2": [0.5]}, "steps": 2}, "sha256": {}}', "config that does not fit"),
        ("transformer/config.json", '{"num_wheels": 4}', "config that does not fit"),
        ("prompt_encoder/config.json", '{"text_dim": 64, "vocabulary": []}', "another vocabulary"),
    ],
)
def test_damaged_configs_are_told(folder: Path, file: str, text: str, message: str) -> None:
    (folder / file).write_text(text)
    if file != "model_index.json":
        record_checksums(folder)
    with pytest.raises(FamilyLoadError, match=message):
        load_world_model(folder)
