"""Checks whether this machine can serve a configuration, and says what to do where it can't."""

from __future__ import annotations

import json
import os
import platform
import resource
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from ithaka.configs.schema import ModelSection, ServeConfig

MIN_OPEN_FILES = 1024
PROBE_TIMEOUT_S = 60


@dataclass(frozen=True, slots=True)
class Finding:
    """One checked thing. ``advice`` is empty where ``good``."""

    subject: str
    good: bool
    value: str
    advice: str = ""


def examine(config: ServeConfig) -> Iterator[Finding]:
    """Findings one by one, quick ones first."""
    yield _kernel()
    yield _open_files()
    yield _encoder()
    yield _port(config)
    probe, finding = _torch(config)
    yield finding
    for model in config.models:
        yield _model(config, model.name, probe)
        if model.name in probe.weights:
            yield _weights(model, probe.weights[model.name])


def _kernel() -> Finding:
    needed = [name for name in ("memfd_create", "eventfd", "pidfd_open") if not hasattr(os, name)]
    advice = f"Ithaka needs Linux 5.3 or later ({', '.join(needed)} missing)" if needed else ""
    return Finding(
        "system", not needed, f"{platform.system()} {platform.release()}, Python {platform.python_version()}", advice
    )


def _open_files() -> Finding:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    good = soft == resource.RLIM_INFINITY or soft >= MIN_OPEN_FILES
    return Finding("open files", good, str(soft), "" if good else f"raise it: `ulimit -n {MIN_OPEN_FILES}`")


def _encoder() -> Finding:
    try:
        import av

        av.Codec("libx264", "w")
    except Exception as error:
        return Finding("H.264 encoder", False, str(error), "install PyAV from its wheel: `pip install av`")
    return Finding("H.264 encoder", True, f"libx264 (PyAV {av.__version__})")


def _port(config: ServeConfig) -> Finding:
    address = (config.server.host, config.server.port)
    shown = f"{address[0]}:{address[1]}"
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
        except OSError as error:
            return Finding("port", False, f"{shown}: {error.strerror}", "stop what listens there, or give another --port")
    return Finding("port", True, f"{shown} is free")


@dataclass(frozen=True, slots=True)
class Probe:
    """What a process with torch found; ``weights``: ``{"good", "told"}`` by model."""

    devices: tuple[str, ...] = ()
    weights: dict[str, dict[str, Any]] = field(default_factory=dict)


def _torch(config: ServeConfig) -> tuple[Probe, Finding]:
    command = [sys.executable, "-m", "ithaka.workers.probe"]
    models = [
        {"name": model.name, "family": model.family, "options": model.options, "ranks": model.ranks} for model in config.models
    ]
    try:
        done = subprocess.run(
            command, input=json.dumps(models), capture_output=True, text=True, timeout=PROBE_TIMEOUT_S, check=True
        )
    except (subprocess.SubprocessError, OSError) as error:
        detail = (str(getattr(error, "stderr", "") or "") or str(error)).strip().splitlines()[-1]
        return Probe(), Finding("torch", False, detail, "install it: `pip install torch`")
    found = json.loads(done.stdout)
    probe = Probe(tuple(found["devices"]), found["weights"])
    shown = ", ".join(probe.devices) or f"no CUDA device: models run on {os.cpu_count()} CPU cores"
    return probe, Finding("torch", True, f"{found['torch']}; {shown}")


def _weights(model: ModelSection, found: dict[str, Any]) -> Finding:
    option = f"models.{model.name}.options.weights"
    advice = (
        f"name another folder in {option}, or leave it out for the model of this package"
        if "weights" in model.options
        else f"`pip install --force-reinstall ithaka` brings them anew; or name a folder in {option}"
    )
    return Finding(f"weights of {model.name}", found["good"], found["told"], "" if found["good"] else advice)


def _model(config: ServeConfig, name: str, probe: Probe) -> Finding:
    model = next(model for model in config.models if model.name == name)
    num_devices = len(probe.devices)
    subject = f"model {name}"
    shown = f"{model.family}, {model.ranks} rank{'s' if model.ranks > 1 else ''} on {model.device}"
    if model.stages is not None:
        shown = f"{model.family}, {model.stages} on {model.device}"
    needed = model.ranks if model.stages is None else model.stages.num_devices
    if model.device.startswith("cuda") and num_devices < needed:
        remedy = "set `ranks` to as many" if model.stages is None else "lower the numbers in `stages`"
        return Finding(subject, False, shown, f"{num_devices} CUDA devices here; {remedy}, or `device: cpu`")
    return Finding(subject, True, shown)
