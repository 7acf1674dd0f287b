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


def test_numbers_come_from_the_environment_as_text_and_truth_values_from_nowhere() -> None:
    assert load_config(None, {}, {"ITHAKA_SERVER__PORT": "8000"}).server.port == 8000
    for name, value in {"ITHAKA_SERVER__PORT": "true", "ITHAKA_SERVER": '{"port": true}'}.items():
        with pytest.raises(ConfigError, match=f"{name}: server.port"):
            load_config(None, {}, {name: value})


def test_a_families_options_may_be_true_or_false(tmp_path: Path) -> None:
    path = write(tmp_path / "a.yaml", "models: [{name: a, family: b, options: {fast: true}}]")
    assert load_config(path, {}, {}).models[0].options == {"fast": True}


def test_a_secret_beside_a_truth_value_is_not_told(tmp_path: Path) -> None:
    path = write(tmp_path / "a.yaml", "access: {api_keys: [true, 0123456789abcdefgh]}")
    with pytest.raises(ConfigError, match=r"access.api_keys: true and false") as caught:
        load_config(path, {}, {})
    assert "0123456789" not in str(caught.value)


def test_lists_come_from_the_environment_as_json() -> None:
    config = load_config(None, {}, {"ITHAKA_MODELS": '[{"name": "bars", "family": "synthetic"}]'})
    assert [model.name for model in config.models] == ["bars"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("server: {prot: 1}", "server.prot: no such field; did you mean port? Known here: allowed_hosts, allowed_origins, "),
        ("sevrer: {port: 1}", "sevrer: no such field; did you mean server? Known here: access, encode, log, models, "),
        ("port: 1", "port: no such field; did you mean server.port? Known here: access, "),
        ("log: {zzz: 1}", "log.zzz: no such field; known here: format, level"),
        (
            "log: {level: debgu}",
            "log.level = 'debgu': Input should be 'debug', 'info', 'warning' or 'error'; did you mean debug?",
        ),
        ("models: [{name: a, famly: b}]", "models.0.famly: no such field; did you mean family? Known here: device, family, "),
        (
            "models: [{name: a, family: b, stages: {denoise: [0], decode: [1], verfy: [2]}}]",
            "models.0.stages.verfy: no such field; did you mean verify? Known here: decode, denoise, verify",
        ),
        ("webrtc: {ice_servers: [{ulrs: [a]}]}", "webrtc.ice_servers.0.ulrs: no such field; did you mean urls? Known here: "),
        ("models: [{family: synthetic}]", "models.0.name: Field required"),
        ("log: debug", "log: expected a mapping with fields of format, level"),
        ("server: {port: eighty}", "server.port = 'eighty': Input should be a valid integer"),
        ("server: {port: true}", "server.port = True: true and false are no values of this field"),
        ("sessions: {drain_timeout_s: no}", "sessions.drain_timeout_s = False: true and false"),
        ("models: [{name: a, family: b, ranks: true}]", "models.0.ranks = True: true and false"),
        (
            "models: [{name: a, family: b, stages: {denoise: [true], decode: [0]}}]",
            "models.0.stages.denoise = [True]: true and",
        ),
        ("webrtc: {host_candidates: [true]}", "webrtc.host_candidates = [True]: true and false"),
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
        ("a: [", ":1:5: not YAML: expected the node content"),
        ("log:\n  level: 2001-99-99", "not YAML: month must be in 1..12"),
        ("a: " + "[" * 5000, "nested too deep"),
        ("? [a]\n: 1", ":1:3: not YAML: found unhashable key"),
        ("log: {level: info}\n--- a", "not YAML: but found another document"),
    ],
)
def test_an_error_names_file_field_value_and_expectation(tmp_path: Path, text: str, expected: str) -> None:
    path = write(tmp_path / "bad.yaml", text)
    with pytest.raises(ConfigError) as caught:
        load_config(path, {}, {})
    assert str(path) in str(caught.value)
    assert expected in str(caught.value)
    assert "short-secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "log:\n  level: info\n  format: json\n  level: debug\n",
            [":4:3: log.level stands here and in line 2, column 3; keep one of them"],
        ),
        ("log: {level: info, 'level': debug}", [":1:20: log.level stands here and in line 1, column 7; keep one of them"]),
        (
            "server: {port: 1}\nlog: {level: info}\nserver: {host: localhost, host: '::1'}\n",
            [
                ":3:1: server stands here and in line 1, column 1; keep one of them",
                ":3:27: server.host stands here and in line 3, column 10; keep one of them",
            ],
        ),
        (
            "models:\n- name: a\n  family: b\n  options:\n    fps: 1\n    fps: 2\n",
            [":6:5: models.0.options.fps stands here and in line 5, column 5; keep one of them"],
        ),
    ],
)
def test_a_key_that_stands_twice_is_named_with_both_places(tmp_path: Path, text: str, expected: list[str]) -> None:
    path = write(tmp_path / "twice.yaml", text)
    with pytest.raises(ConfigError) as caught:
        load_config(path, {}, {})
    assert str(caught.value).splitlines() == [f"{path}{line}" for line in expected]


def test_what_is_merged_may_be_overridden_and_an_alias_is_read_once(tmp_path: Path) -> None:
    text = "log: &a {level: info}\n"
    path = write(tmp_path / "merged.yaml", f"{text}sessions: {{<<: {{window_frames: 4}}, window_frames: 5}}\n")
    assert load_config(path, {}, {}).sessions.window_frames == 5
    endless = write(tmp_path / "endless.yaml", "log: &a [*a]\n")
    with pytest.raises(ConfigError, match="log: expected a mapping"):
        load_config(endless, {}, {})


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
        (
            {"ITHAKA_SERVR__PORT": "1"},
            {},
            "ITHAKA_SERVR__PORT: no section 'servr'; did you mean ITHAKA_SERVER__PORT? Expected ",
        ),
        (
            {"ITHAKA_SERVER_PORT": "1"},
            {},
            "no section 'server_port'; did you mean ITHAKA_SERVER__PORT? Expected ITHAKA_SECTION__",
        ),
        ({"ITHAKA_API_KEYS": "[]"}, {}, "no section 'api_keys'; did you mean ITHAKA_ACCESS__API_KEYS? "),
        (
            {"ITHAKA_XYZ": "1"},
            {},
            "environment: ITHAKA_XYZ: no section 'xyz'; expected ITHAKA_SECTION__FIELD with a section of ",
        ),
        ({"ITHAKA_SERVER__PRT": "1"}, {}, "environment: ITHAKA_SERVER__PRT: server.prt: no such field; did you mean port? "),
        ({"ITHAKA_SERVER__PORT": "x"}, {}, "environment: ITHAKA_SERVER__PORT: server.port = 'x'"),
        (
            {"ITHAKA_MODELS": '[{"name": "a", "name": "b"}]'},
            {},
            "environment: ITHAKA_MODELS: 'name' stands twice in one object",
        ),
        ({"ITHAKA_LOG": '{"level": "info", "level": "debug"}'}, {}, "environment: ITHAKA_LOG: 'level' stands twice"),
        ({"ITHAKA_MODELS": "[{", "ITHAKA_LOG__LEVEL": "info"}, {}, "environment: ITHAKA_MODELS: lists"),
        ({"ITHAKA_ACCESS__API_KEYS": "secret"}, {}, "environment: ITHAKA_ACCESS__API_KEYS: lists"),
        ({"ITHAKA_ACCESS__API_KEYS": '["secret"]'}, {}, "environment: ITHAKA_ACCESS__API_KEYS: access.api_keys: an API key"),
        ({}, {"server": {"port": -1}}, "command line: server.port = -1"),
    ],
)
def test_an_error_names_the_layer_it_came_from(environ: dict[str, str], flags: dict[str, Any], expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(None, flags, environ)
    assert expected in str(caught.value)
