"""Training in miniature: losses fall, states resume, what is exported loads."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from training.labyrinth import train
from training.labyrinth.clips import ClipMaker
from training.labyrinth.distil import Distiller, frozen_copy
from training.labyrinth.evaluate import Evaluator, generate
from training.labyrinth.optimizer import orthogonalise
from training.labyrinth.starts import make_starts
from training.labyrinth.state import load_state, save_state
from training.labyrinth.strip import save_picture
from training.labyrinth.train_autoencoder import train_autoencoder
from training.labyrinth.train_transformer import Batch, Trainer, TrainingPlan

from ithaka.workers.families.wan.autoencoder import TinyAutoencoder
from ithaka.workers.families.wan.model import CausalWanModel
from ithaka.workers.families.wan.prompt import PromptEncoder
from ithaka.workers.families.wan.spec import LABYRINTH
from ithaka.workers.families.wan.weights_folder import Starts, WorldModel, load_world_model, save_world_model

CPU = torch.device("cpu")
PLAN = TrainingPlan(
    seconds=1.0,
    clips_per_step=2,
    num_frames=3,
    window=16,
    muon_rate=4e-3,
    adamw_rate=2e-3,
    decay=0.0,
    bank_clips=2,
    compiled=False,
    warmup_steps=2,
    ema_steps=4,
)


def _tiny() -> CausalWanModel:
    torch.manual_seed(0)
    model: CausalWanModel = CausalWanModel(
        num_attention_heads=2, attention_head_dim=16, num_layers=2, ffn_dim=64, text_dim=8, freq_dim=32, control_dim=8
    )
    return model


def _trainer() -> Trainer:
    return Trainer(_tiny(), PromptEncoder(8), PLAN)


def _batch() -> Batch:
    generator = torch.Generator().manual_seed(1)
    latents = torch.randn(2, 1, 1, 16, generator=generator).expand(2, 3, 64, 16).contiguous()
    return Batch(latents, torch.zeros(2, 3, 3), torch.ones(2, 3, 6, dtype=torch.long))


def test_the_flow_loss_falls() -> None:
    trainer, batch = _trainer(), _batch()
    losses = []
    for step in range(40):
        loss = trainer.flow_loss(batch)
        trainer.update(loss, step, 0.0)
        losses.append(loss.item())
    assert sum(losses[-5:]) < 0.7 * sum(losses[:5])


def test_running_means_swap_in_and_out() -> None:
    trainer = _trainer()
    for step in range(3):
        trainer.update(trainer.flow_loss(_batch()), step, 0.0)
    raw = [p.detach().clone() for p in trainer.clip_model.model.parameters()]
    trainer.swap_means()
    assert any(not torch.equal(a, b) for a, b in zip(raw, trainer.clip_model.model.parameters(), strict=True))
    trainer.swap_means()
    assert all(torch.equal(a, b) for a, b in zip(raw, trainer.clip_model.model.parameters(), strict=True))


def test_a_student_that_equals_a_straight_teacher_has_nothing_to_learn() -> None:
    trainer = _trainer()
    nn.init.zeros_(trainer.clip_model.model.proj_out.weight)
    teacher = frozen_copy(trainer)
    loss = Distiller(trainer, teacher, 0.8).loss(_batch())
    assert loss.item() < 1e-8
    teacher.clip_model.model.proj_out.bias.add_(1.0)
    assert Distiller(trainer, teacher, 0.8).loss(_batch()).item() == pytest.approx(1.0, abs=1e-3)


@pytest.mark.parametrize("shape", [(3, 24, 48), (2, 16, 48), (2, 48, 16)])
def test_orthogonalised_updates_have_singular_values_near_one(shape: tuple[int, int, int]) -> None:
    values = torch.linalg.svdvals(orthogonalise(torch.randn(shape, generator=torch.Generator().manual_seed(0))))
    assert values.min() > 0.3 and values.max() < 1.4


def test_a_state_resumes(tmp_path: Path) -> None:
    first, second = _tiny(), _tiny()
    nn.init.normal_(first.proj_out.weight)
    save_state(tmp_path, {"transformer": first}, 17)
    assert load_state(tmp_path, {"transformer": second}) == 17
    assert torch.equal(first.proj_out.weight, second.proj_out.weight)
    with pytest.raises(FileNotFoundError, match="no state"):
        load_state(tmp_path / "empty", {"transformer": second})


def test_the_decoder_alone_leaves_the_latents() -> None:
    torch.manual_seed(0)
    autoencoder = TinyAutoencoder().eval()
    pictures = torch.rand(2, 3, 128, 128)
    latents = autoencoder.encode(pictures)
    decoded = autoencoder.decode(latents)
    lines: list[str] = []
    train_autoencoder(
        autoencoder, ClipMaker(1, CPU), seconds=0.01, batch=2, compiled=False, decoder_only=True, log=lines.append
    )
    torch.testing.assert_close(autoencoder.encode(pictures), latents, rtol=0, atol=1e-4)
    assert not torch.equal(autoencoder.decode(latents), decoded)
    assert "autoencoder step 0" in lines[0]


def _world() -> WorldModel:
    torch.manual_seed(0)
    autoencoder = TinyAutoencoder().eval().requires_grad_(False)
    starts = make_starts(autoencoder, ClipMaker(1, CPU), 1)
    prompts = PromptEncoder(8).requires_grad_(False)
    return WorldModel(_tiny().requires_grad_(False).eval(), autoencoder, prompts, starts, LABYRINTH)


def test_what_is_exported_loads_and_walks(tmp_path: Path) -> None:
    world = _world()
    save_world_model(tmp_path, world)
    loaded = load_world_model(tmp_path)
    assert loaded.sampling == world.sampling
    for name, tensor in world.transformer.state_dict().items():
        torch.testing.assert_close(loaded.transformer.state_dict()[name], tensor, rtol=2e-3, atol=1e-6)
    assert isinstance(loaded.starts, Starts)
    clips = ClipMaker(2, CPU)
    walks = clips.walks(1, 4)
    made = list(generate(loaded, clips, walks, 2, 2, loaded.sampling.schedule(2)))
    assert [number for number, _ in made] == [1, 2]
    save_picture(tmp_path / "strip.png", torch.stack([picture for _, picture in made], 1))
    assert (tmp_path / "strip.png").stat().st_size > 1000


def test_the_table_has_every_row() -> None:
    world = replace(_world(), sampling=LABYRINTH)
    evaluator = Evaluator(world, lambda seed: ClipMaker(seed, CPU), 1)
    rows = evaluator.table(world.sampling.schedule(1), long_frames=(2,))
    names = [row.measure.split(",")[0] for row in rows]
    assert names == ["free walk", "turn left 8", "walk ahead 8", "sharpness", "sharpness"]
    assert all(str(row).startswith("|") for row in rows)


def test_a_run_trains_distils_exports_and_goes_on(tmp_path: Path) -> None:
    small = ["--device", "cpu", "--pictures", "1", "--clips", "1", "--frames", "2", "--bank", "2", "--starts", "1"]
    brief = ["--mazes", "0", "--transformer-seconds", "0.01"]
    first, second = tmp_path / "first", tmp_path / "second"
    train.main([*small, *brief, "--out", str(first), "--autoencoder-seconds", "0.01", "--distil-seconds", "0.01"])
    assert load_world_model(first / "weights").starts.latents.shape == (6, 1, 4, 64, 16)
    train.main([*small, *brief, "--out", str(second), "--autoencoder-seconds", "0", "--resume", str(first)])
    steps = [load_file(folder / "state-0.safetensors")["step"].item() for folder in (first, second)]
    assert steps == [1, 2]
    assert "transformer trained to step 2" in (second / "log.txt").read_text()
