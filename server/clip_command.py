"""``ithaka generate``: a local engine, one generation, a progress bar, an MP4."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

from ithaka.configs.schema import ModelSection, ServeConfig
from ithaka.server.control_script import ControlScript
from ithaka.server.engine_client import PacketArrived, SessionRequest
from ithaka.server.generate import Generation, GenerationError
from ithaka.server.mp4_writer import Mp4Writer
from ithaka.server.supervisor import LocalEngine
from ithaka.workers.contract import ModelDescription


async def make_clip(
    config: ServeConfig,
    model: ModelSection,
    output: Path,
    *,
    num_frames: int,
    seed: int,
    prompt: str,
    script: ControlScript,
    exact: bool,
) -> None:
    """Write ``output``, whole or not at all. Raises ScriptError, GenerationError, EngineError, OSError."""
    engine = LocalEngine(config.model_copy(update={"models": (model,)}))
    partial = output.with_name(f".{output.name}.partial")
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns) as progress, _removed_at_exit(partial):
        task = progress.add_task(f"loading {model.name}", total=num_frames)
        with ExitStack() as files:
            writers: list[Mp4Writer] = []

            def write(description: ModelDescription, packet: PacketArrived) -> None:
                if not writers:
                    writers.append(files.enter_context(Mp4Writer(partial, fps=description.fps)))
                    progress.update(task, description=f"generating {description.width}×{description.height}")
                writers[0].write(packet.payload, pts=packet.header.pts, key=packet.header.key)
                progress.advance(task)

            def judge(description: ModelDescription) -> None:
                if prompt and not description.takes_prompt:
                    raise GenerationError(f"--prompt: model {model.name!r} takes no prompt")
                script.require_model(description, num_frames)

            request = SessionRequest("clip", model.name, seed, prompt, "exact" if exact else "lossy")
            generation = Generation(
                engine, request, num_frames=num_frames, script=script.by_frame(), on_ready=judge, on_packet=write
            )
            try:
                clip = await generation.run()
            finally:
                await engine.stop(deadline_s=config.supervisor.stop_timeout_s)
        partial.replace(output)
        progress.update(task, total=clip.num_frames, description=f"wrote {output}")


@contextmanager
def _removed_at_exit(path: Path) -> Iterator[None]:
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
