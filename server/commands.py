"""What ``ithaka`` does: parse, load the configuration, run. Heavy things are imported by the command that needs them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ithaka.configs.load import ConfigError, load_config
from ithaka.configs.logs import configure_logs
from ithaka.configs.names import did_you_mean
from ithaka.configs.schema import ServeConfig
from ithaka.server.cli import EXIT_INTERRUPTED
from ithaka.workers.families.base import FamilyLoadError
from ithaka.workers.families.registry import check_options, family_names

EXIT_USAGE = 2

app = typer.Typer(
    name="ithaka",
    help="Serves interactive video and world models: sessions over HTTP and WebSocket, lossless, on GPUs or a laptop's CPU.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

ConfigOption = Annotated[Path | None, typer.Option("--config", "-c", metavar="FILE", help="YAML settings; see configs/*.yaml.")]
ModelOption = Annotated[str | None, typer.Option("--model", "-m", metavar="NAME", help="A model of the configuration.")]


@app.command()
def serve(
    config: ConfigOption = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on; beyond loopback keys are needed.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on; 0 takes a free one.")] = None,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning or error.")] = None,
) -> None:
    """Start the daemon and print its URL. Ctrl-C drains every session and stops; a second one forces."""
    settings = _load(config, {"server": {"host": host, "port": port}, "log": {"level": log_level}})
    configure_logs(settings.log, process="server")

    def announce(url: str) -> None:
        Console().print(f"\n  Ithaka serves at [bold link={url}]{url}[/]   (Ctrl-C stops)\n", highlight=False)

    from ithaka.server.daemon import serve as serve_daemon
    from ithaka.server.supervisor import LocalEngine

    raise typer.Exit(asyncio.run(serve_daemon(settings, LocalEngine(settings), on_ready=announce)))


@app.command()
def generate(
    output: Annotated[Path, typer.Argument(metavar="OUT.mp4", help="The MP4 to write.")],
    config: ConfigOption = None,
    model: ModelOption = None,
    frames: Annotated[int, typer.Option("--frames", "-n", min=1, max=1_000_000, help="Length of the clip.")] = 120,
    seed: Annotated[int, typer.Option(min=0, max=2**53 - 1, help="The same seed and script give the same clip.")] = 0,
    prompt: Annotated[
        str, typer.Option("--prompt", "-p", help="What the world looks like, where the model takes a prompt.")
    ] = "",
    controls: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="YAML list of inputs, e.g. - {at: 12, press: [KeyW]}."),
    ] = None,
    exact: Annotated[bool, typer.Option("--exact", help="Encode the pixels without loss.")] = False,
) -> None:
    """Make one clip as fast as the machine allows, without a server."""
    from ithaka.server.clip_command import make_clip
    from ithaka.server.control_script import ControlScript, ScriptError, read_script
    from ithaka.server.engine_client import EngineError
    from ithaka.server.generate import GenerationError

    settings = _load(config, {"log": {"level": "warning"}})
    wanted = next((entry for entry in settings.models if model in (None, entry.name)), None)
    if wanted is None:
        names = [entry.name for entry in settings.models]
        told = did_you_mean(model or "", names)
        raise _refuse(f"--model: no model {model!r} in the configuration; it has {', '.join(names)}{told}")
    if output.suffix.lower() != ".mp4" or not output.parent.is_dir():
        raise _refuse(f"{output}: give the path of an .mp4 in a folder that exists")
    configure_logs(settings.log, process="generate")
    # What the engine's keeper would log of a model that does not start, this command says itself.
    logging.getLogger("ithaka.server.upkeep").setLevel(logging.CRITICAL)
    try:
        script = read_script(controls) if controls else ControlScript("")
        script.require_length(frames)
        with _interruptible():
            asyncio.run(
                make_clip(settings, wanted, output, num_frames=frames, seed=seed, prompt=prompt, script=script, exact=exact)
            )
    except (ScriptError, GenerationError, EngineError, OSError) as error:
        raise _refuse(str(error), code=EXIT_USAGE if isinstance(error, ScriptError) else 1) from error


@app.command()
def models(config: ConfigOption = None) -> None:
    """List the models of the configuration and the families a configuration can name."""
    settings = _load(config, {})
    table = Table("model", "family", "ranks", "device", "sessions at once", "options", box=None, header_style="bold")
    for model in settings.models:
        options = ", ".join(f"{key}={value}" for key, value in model.options.items()) or "-"
        device = model.device if model.stages is None else f"{model.device}: {model.stages}"
        table.add_row(model.name, model.family, str(model.ranks), device, str(model.max_sessions), options)
    console = Console()
    console.print(table)
    console.print(f"\nfamilies: {', '.join(family_names())}", highlight=False)


@app.command()
def doctor(config: ConfigOption = None) -> None:
    """Check what this machine needs to serve the configuration; exit code 1 where something is missing."""
    from ithaka.server.doctor import examine

    settings = _load(config, {})
    console = Console()
    all_good = True
    with _interruptible():
        for finding in examine(settings):
            mark = "[green]✓[/]" if finding.good else "[red]✗[/]"
            advice = f"\n    [yellow]{escape(finding.advice)}[/]" if finding.advice else ""
            console.print(
                f"{mark} [bold]{finding.subject}[/]: {escape(finding.value)}{advice}", highlight=False, soft_wrap=True
            )
            all_good &= finding.good
    raise typer.Exit(0 if all_good else 1)


def _load(path: Path | None, flags: dict[str, dict[str, Any]]) -> ServeConfig:
    given = {section: {name: value for name, value in fields.items() if value is not None} for section, fields in flags.items()}
    try:
        config = load_config(path, {section: fields for section, fields in given.items() if fields})
    except ConfigError as error:
        raise _refuse(str(error)) from error
    for index, model in enumerate(config.models):
        if model.family not in family_names():
            known = f"{', '.join(family_names())}{did_you_mean(model.family, family_names())}"
            raise _refuse(f"{path or 'configuration'}: models.{index}.family = {model.family!r}: expected one of {known}")
        try:
            check_options(model.family, model.options)
        except FamilyLoadError as error:
            raise _refuse(f"{path or 'configuration'}: models.{index}.{error.field}: {error}") from error
    return config


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """While this lasts an interrupt does not end the process at once: what was begun is undone first."""
    before = signal.getsignal(signal.SIGINT)
    try:
        if before is not signal.SIG_IGN:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        yield
    except KeyboardInterrupt:
        raise _refuse("Interrupted.", code=EXIT_INTERRUPTED) from None
    finally:
        signal.signal(signal.SIGINT, before)


def _refuse(message: str, *, code: int = EXIT_USAGE) -> typer.Exit:
    Console(stderr=True).print(message, style="red", highlight=False, markup=False, soft_wrap=True)
    return typer.Exit(code)
