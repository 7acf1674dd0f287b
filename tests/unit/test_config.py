"""Configuration: layers, and errors that teach."""

from pathlib import Path
from typing import Any

import pytest

from ithaka.configs.load import ConfigError, load_config
from ithaka.configs.schema import ServeConfig


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_defaults_need_no_file() -> None:
    assert load_config(None, {}, {}) == ServeConfig()


def test_flags_win_over_environment_over_file(tmp_path: Path) -> None:
    path = write(tmp_path / "a.yaml", "server: {port: 1, host: localhost}\nsessions: {window_frames: 4}\n")
    environ = {"ITHAKA_SERVER__PORT": "2", "ITHAKA_LOG__LEVEL": "debug"}
    config = load_config(path, {"server": {"port": 3}}, environ)
    assert (config.server.port, config.server.host) == (3, "localhost")
    assert (config.sessions.window_frames, config.log.level) == (4, "debug")
    assert load_config(path, {}, environ).server.port == 2
    assert load_config(path, {}, {}).server.port == 1


def test_lists_come_from_the_environment_as_json() -> None:
    config = load_config(None, {}, {"ITHAKA_MODELS": '[{"name": "bars", "family": "synthetic"}]'})
    assert [model.name for model in config.models] == ["bars"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("server: {prot: 1}", "server.prot: no such field (a typo?)"),
        ("server: {port: eighty}", "server.port = 'eighty': Input should be a valid integer"),
        ("server: {port: 70000}", "server.port = 70000: Input should be less than or equal to 65535"),
        ("sessions: {max_viewers: 10001}", "sessions.max_viewers = 10001: Input should be less than or equal to 10000"),
        ("models: []", "at least one is needed"),
        ("models: [{name: a, family: synthetic}, {name: a, family: synthetic}]", "'a' is used twice"),
        ("models: [{name: a, family: synthetic, ranks: 9}]", "models.0.ranks = 9"),
        ("server: {host: 0.0.0.0}", "needs at least one key"),
        ("server: {tls_key: /dev/null}", "server.tls_key = "),
        ("server: {tls_certificate: no/such.pem}", "server.tls_certificate = 'no/such.pem': Path does not point to a file"),
        ("access: {api_keys: [short-secret]}", "access.api_keys: an API key has"),
        ("access: {api_keys: [short-secret]}", "at least 16 characters"),
        ("- a", "expected a mapping"),
        ("a: [", "not YAML"),
    ],
)
def test_an_error_names_file_field_value_and_expectation(tmp_path: Path, text: str, expected: str) -> None:
    path = write(tmp_path / "bad.yaml", text)
    with pytest.raises(ConfigError) as caught:
        load_config(path, {}, {})
    assert str(path) in str(caught.value)
    assert expected in str(caught.value)
    assert "short-secret" not in str(caught.value)


def test_tls_takes_both_files(tmp_path: Path) -> None:
    path = write(tmp_path / "tls.yaml", f"server: {{tls_key: {write(tmp_path / 'key.pem', '')}}}")
    with pytest.raises(ConfigError, match="server: tls_certificate and tls_key go together"):
        load_config(path, {}, {})


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.yaml: No such file"):
        load_config(tmp_path / "none.yaml", {}, {})


@pytest.mark.parametrize(
    ("environ", "flags", "expected"),
    [
        ({"ITHAKA_SERVR__PORT": "1"}, {}, "ITHAKA_SERVR__PORT: no section 'servr'"),
        ({"ITHAKA_SERVER__PRT": "1"}, {}, "environment: server.prt: no such field"),
        ({"ITHAKA_SERVER__PORT": "x"}, {}, "environment: server.port = 'x'"),
        ({"ITHAKA_MODELS": "[{", "ITHAKA_LOG__LEVEL": "info"}, {}, "environment: ITHAKA_MODELS: lists"),
        ({"ITHAKA_ACCESS__API_KEYS": "secret"}, {}, "environment: ITHAKA_ACCESS__API_KEYS: lists"),
        ({"ITHAKA_ACCESS__API_KEYS": '["secret"]'}, {}, "environment: access.api_keys: an API key"),
        ({}, {"server": {"port": -1}}, "command line: server.port = -1"),
    ],
)
def test_an_error_names_the_layer_it_came_from(environ: dict[str, str], flags: dict[str, Any], expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(None, flags, environ)
    assert expected in str(caught.value)
