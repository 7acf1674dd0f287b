"""The image's own steps, run in a fresh folder: what the wheel lacks would be missing here."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

import httpx
import pytest
import yaml
from benchmarks.daemon import await_ready, read_url, start

from ithaka.configs.load import load_config

ROOT = Path(__file__).parents[2]
ROOMS = ("server/", "workers/", "comm_ext/", "configs/")


def tracked() -> list[str]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [name for name in listed.split("\0") if name and (ROOT / name).exists()]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Dockerfile's build steps over a copy of what is tracked, into a folder beside it."""
    folder = tmp_path_factory.mktemp("image")
    source, destination = folder / "src", folder / "ithaka"
    for name in tracked():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, source / name, follow_symlinks=False)
    dockerfile = (ROOT / "deploy/Dockerfile").read_text()
    build_stage = dockerfile.split("FROM ")[1]
    steps = re.findall(r"^RUN (.+)$", build_stage, re.MULTILINE)
    assert steps, "the build stage has no step"
    for step in steps:
        subprocess.run(["bash", "-c", step.replace("/opt/ithaka", str(destination))], cwd=source, check=True)
    return destination


@pytest.mark.timeout(600)
def test_the_wheel_alone_serves_the_model_and_the_page(installed: Path, tmp_path: Path) -> None:
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    process = start(program=[installed / "bin/ithaka"], cwd=tmp_path, environ=environ)
    try:
        url = read_url(process)
        await_ready(process, url)
        page = httpx.get(url)
        script = re.search(r'src="([^"]+\.js)"', page.text)
        assert page.status_code == 200 and script, page.text
        assert httpx.get(f"{url}/{script[1].lstrip('/')}").status_code == 200
        created = httpx.post(f"{url}/v1/sessions", json={"model": "labyrinth"})
        assert created.status_code == 201, created.text
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert process.returncode == 0


def test_every_module_of_the_rooms_is_in_the_wheel(installed: Path) -> None:
    (package,) = installed.glob("lib/python*/site-packages/ithaka")
    modules = [name for name in tracked() if name.startswith(ROOMS) and name.endswith(".py")]
    assert modules
    assert [name for name in modules if not (package / name).exists()] == []


def test_the_compose_file_protects_and_drains_the_daemon() -> None:
    services = yaml.safe_load((ROOT / "deploy/compose.yaml").read_text())["services"]
    daemon = services["ithaka"]
    assert daemon["init"] is True and daemon["stop_grace_period"] == "20s"
    assert all(ports.endswith("/udp") for ports in daemon["ports"]), "HTTP comes through the TLS proxy only"
    assert "ITHAKA_API_KEY:?" in daemon["environment"]["ITHAKA_ACCESS__API_KEYS"]
    assert services["proxy"]["depends_on"] == {"ithaka": {"condition": "service_healthy"}}


def test_the_container_publishes_the_ports_that_peers_are_told() -> None:
    daemon = yaml.safe_load((ROOT / "deploy/compose.yaml").read_text())["services"]["ithaka"]
    # As compose fills the variables in where nothing is set.
    environ = {
        name: re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", value)
        for name, value in daemon["environment"].items()
        if name.startswith("ITHAKA_WEBRTC")
    }
    config = load_config(ROOT / "deploy/ithaka.yaml", {"access": {"api_keys": ["0123456789abcdef"]}}, environ)
    ports = config.webrtc.udp_port_range
    assert ports is not None and len(ports) >= config.webrtc.max_connections
    assert daemon["ports"] == [f"{ports[0]}-{ports[-1]}:{ports[0]}-{ports[-1]}/udp"]
    assert str(config.webrtc.announced_address) == "127.0.0.1"
