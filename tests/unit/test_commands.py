"""The command line refuses what it can't do before anything starts, and says why."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from ithaka.server.commands import EXIT_USAGE, app

runner = CliRunner()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["serve", "-c", "none.yaml"], "none.yaml: No such file"),
        (["serve", "--port", "70000"], "command line: server.port = 70000"),
        (["serve", "--host", "0.0.0.0"], "needs at least one key"),
        (["serve", "--log-level", "loud"], "log.level = 'loud'"),
        (["generate", "clip.avi"], "give the path of an .mp4"),
        (["generate", "no/such/folder/clip.mp4"], "a folder that exists"),
        (["generate", "clip.mp4", "-m", "other"], "no model 'other' in the configuration; it has labyrinth"),
        (["generate", "clip.mp4", "-m", "labyrint"], "it has labyrinth; did you mean labyrinth?"),
        (["serve", "--prot", "1"], "No such option: --prot (Possible options: --host, --port)"),
        (["srve"], "No such command 'srve'. Did you mean 'serve'?"),
        (["generate", "clip.mp4", "--controls", "none.yaml"], "none.yaml: No such file"),
    ],
)
def test_what_can_not_be_done_ends_with_2_and_a_reason(arguments: list[str], said: str) -> None:
    result = runner.invoke(app, arguments)
    assert result.exit_code == EXIT_USAGE
    assert said in result.stderr


def test_a_key_that_stands_twice_ends_with_2(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("server:\n  port: 1\n  port: 2\n")
    result = runner.invoke(app, ["serve", "-c", str(path)])
    assert result.exit_code == EXIT_USAGE
    assert result.stderr == f"{path}:3:3: server.port stands here and in line 2, column 3; keep one of them\n"


def test_input_after_the_clips_end_is_refused_with_its_last_frame(tmp_path: Path) -> None:
    path = tmp_path / "walk.yaml"
    path.write_text("- {at: 9, press: [KeyW]}\n- {at: 10, press: [KeyW]}\n")
    result = runner.invoke(app, ["generate", str(tmp_path / "clip.mp4"), "-n", "10", "--controls", str(path)])
    assert result.exit_code == EXIT_USAGE
    assert result.stderr == f"{path}: 1.at: 10 comes after the clip's last frame, 9; make the clip longer with --frames\n"


def test_an_unknown_family_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("models: [{name: a, family: labyrint}]")
    result = runner.invoke(app, ["serve", "-c", str(path)])
    assert result.exit_code == EXIT_USAGE
    assert (
        f"{path}: models.0.family = 'labyrint': expected one of labyrinth, synthetic; did you mean labyrinth?" in result.stderr
    )


@pytest.mark.parametrize(
    ("family", "options", "said"),
    [
        (
            "labyrinth",
            "{weigths: x}",
            "models.0.options.weigths: the option `weigths`: is no option of the model, got 'x'; did you mean weights? ",
        ),
        ("labyrinth", "{steps: two}", "models.0.options.steps: the option `steps`: Input should be a valid integer, got 'two'"),
        ("labyrinth", "{dtype: int3}", "models.0.options.dtype: the option `dtype`: Input should be 'auto'"),
        ("synthetic", "{width: 7}", "models.0.options.width: options of the synthetic model: "),
        (
            "synthetic",
            "{fps: 16, wdth: 8}",
            "models.0.options.wdth: options of the synthetic model: wdth: no such option; did you mean width? ",
        ),
    ],
)
@pytest.mark.parametrize("command", ["serve", "doctor"])
def test_a_models_options_are_judged_before_anything_starts(
    tmp_path: Path, command: str, family: str, options: str, said: str
) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(f"models: [{{name: a, family: {family}, options: {options}}}]")
    result = runner.invoke(app, [command, "-c", str(path)])
    assert result.exit_code == EXIT_USAGE
    assert f"{path}: {said}" in result.stderr


def test_models_are_listed(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("models: [{name: bars, family: synthetic, options: {fps: 16}}]")
    result = runner.invoke(app, ["models", "-c", str(path)])
    assert result.exit_code == 0
    assert "bars" in result.stdout and "fps=16" in result.stdout and "labyrinth, synthetic" in result.stdout


@pytest.mark.parametrize("command", ["serve", "generate", "models", "doctor"])
def test_every_command_explains_itself(command: str) -> None:
    result = runner.invoke(app, [command, "--help"])
    assert result.exit_code == 0 and "--config" in result.stdout


def test_a_seed_is_one_that_the_server_takes_too() -> None:
    run = runner.invoke(app, ["generate", "clip.mp4", "--seed", str(2**53)])
    assert run.exit_code == 2
    assert str(2**53 - 1) in run.output
