"""The doctor looks into the weights of every model, as loading would, and says what to do."""

from __future__ import annotations

import json
import shutil
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from ithaka.configs.schema import ServeConfig
from ithaka.server import doctor
from ithaka.server.commands import app
from ithaka.workers.families.wan.checksums import INDEX, record_checksums
from ithaka.workers.families.wan.weights_folder import SHIPPED

AUTOENCODER = "autoencoder/diffusion_pytorch_model.safetensors"


def flip_a_bit(folder: Path) -> None:
    data = bytearray((folder / AUTOENCODER).read_bytes())
    data[-1] ^= 1
    (folder / AUTOENCODER).write_bytes(data)


def cut_off(folder: Path) -> None:
    (folder / AUTOENCODER).write_bytes((folder / AUTOENCODER).read_bytes()[:1000])
    record_checksums(folder)


def write_no_header(folder: Path) -> None:
    (folder / AUTOENCODER).write_bytes(b"\xff" * 1000)
    record_checksums(folder)


def change_tensors(folder: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    tensors = load_file(folder / AUTOENCODER)
    change(tensors)
    save_file(tensors, folder / AUTOENCODER)
    record_checksums(folder)


def reshape(folder: Path) -> None:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        name = min(tensors)
        tensors[name] = torch.zeros(3, 5)
        del tensors[max(tensors)]

    change_tensors(folder, change)


def lose_a_part(folder: Path) -> None:
    (folder / AUTOENCODER).unlink()


def lose_the_index(folder: Path) -> None:
    (folder / INDEX).unlink()


def garble_the_index(folder: Path) -> None:
    (folder / INDEX).write_text("{")


def change_a_config(folder: Path) -> None:
    config = json.loads((folder / "transformer/config.json").read_text())
    (folder / "transformer/config.json").write_text(json.dumps({**config, "num_layers": "many"}))
    record_checksums(folder)


DAMAGES: dict[str, tuple[Callable[[Path], None], str]] = {
    "bit": (flip_a_bit, "is not the file that was exported: its sha256 differs"),
    "cut": (cut_off, "autoencoder can't be read"),
    "header": (write_no_header, "autoencoder can't be read"),
    "shape": (reshape, "is [3, 5], not ["),
    "part": (lose_a_part, "No such file"),
    "index": (lose_the_index, "model_index.json is missing"),
    "garbled": (garble_the_index, "model_index.json can't be read"),
    "config": (change_a_config, "has a config that does not fit this model"),
}


def model(name: str, **settings: Any) -> dict[str, Any]:
    return {"name": name, "family": "labyrinth", **settings}


def test_every_kind_of_damage_is_found_and_told_with_what_to_do(tmp_path: Path) -> None:
    models = [model("shipped"), model("steps", options={"steps": 9}), model("heads", ranks=5)]
    models.append({"name": "bars", "family": "synthetic"})
    for name, (damage, _) in DAMAGES.items():
        shutil.copytree(SHIPPED, tmp_path / name)
        damage(tmp_path / name)
        models.append(model(name, options={"weights": str(tmp_path / name)}))
    findings = {finding.subject: finding for finding in doctor.examine(ServeConfig.model_validate({"models": models}))}
    for name, (_, told) in DAMAGES.items():
        finding = findings[f"weights of {name}"]
        assert not finding.good
        assert str(tmp_path / name) in finding.value and told in finding.value
        assert "\n" not in finding.value
        assert finding.advice == (
            f"name another folder in models.{name}.options.weights, or leave it out for the model of this package"
        )
    assert "; and " not in findings["weights of shape"].value and " is missing; " in findings["weights of shape"].value
    assert findings["weights of shipped"].good
    assert f"{SHIPPED}: sha256, shapes and values are right" in findings["weights of shipped"].value
    assert "samples in 1, 2, 3, 4 steps, not 9" in findings["weights of steps"].value
    assert "split over at most 4 ranks, not 5" in findings["weights of heads"].value
    assert (findings["weights of bars"].good, findings["weights of bars"].value) == (True, "none needed")


def test_the_command_ends_with_1_where_something_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        path.write_text(
            f"server: {{port: {port}}}\nmodels: [{{name: a, family: labyrinth, options: {{weights: {tmp_path}}}}}]\n"
        )
        result = CliRunner().invoke(app, ["doctor", "-c", str(path)])
    assert result.exit_code == 1
    assert (
        f"✗ port: 127.0.0.1:{port}: Address already in use\n    stop what listens there, or give another --port\n"
        in result.stdout
    )
    assert f"✗ weights of a: no weights at {tmp_path}: model_index.json is missing. Reinstall" in result.stdout
    assert "✓ H.264 encoder: libx264" in result.stdout


def test_without_torch_the_rest_is_still_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    findings = {finding.subject: finding for finding in doctor.examine(ServeConfig())}
    assert (findings["torch"].good, findings["torch"].advice) == (False, "install it: `pip install torch`")
    assert "weights of labyrinth" not in findings
