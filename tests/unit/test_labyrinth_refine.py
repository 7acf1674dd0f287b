"""Refinement in miniature: the critic learns and pushes, the student is pulled, candidates are written."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from training.labyrinth import refine
from training.labyrinth.clips import ClipMaker
from training.labyrinth.critic import Critic, CriticTrainer, balanced
from training.labyrinth.own_walks import OwnWalks
from training.labyrinth.refiner import RefinePlan, Refiner
from training.labyrinth.sharpen_decoder import reach_beyond, sharpen_decoder
from training.labyrinth.state import save_state
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


def _tiny(seed: int = 0) -> CausalWanModel:
    torch.manual_seed(seed)
    model: CausalWanModel = CausalWanModel(
        num_attention_heads=2, attention_head_dim=16, num_layers=2, ffn_dim=64, text_dim=8, freq_dim=32, control_dim=8
    )
    return model


def _batch(seed: int) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    latents = torch.randn(2, 3, 64, 16, generator=generator)
    return Batch(latents, torch.zeros(2, 3, 3), torch.ones(2, 3, 6, dtype=torch.long))


def _stripes(soft: bool) -> torch.Tensor:
    """Hard or soft vertical stripes, each picture shifted by a pixel."""
    wave = torch.sin(torch.arange(64)[None] / 3 + torch.arange(4)[:, None])
    edges = wave if soft else wave.sign()
    return edges[:, None, None].expand(4, 3, 32, 64).contiguous()


def test_a_critic_learns_what_is_true_and_pushes_there() -> None:
    torch.manual_seed(0)
    trainer = CriticTrainer(Critic(width=8), learning_rate=2e-3)
    true, made = _stripes(soft=False), _stripes(soft=True)
    leads = [trainer.learn(true, made)[0] for _ in range(25)]
    assert abs(leads[0]) < 0.1 and leads[-1] > 0.5
    moved = made.clone()
    for _ in range(10):
        moved.requires_grad_()
        (push,) = torch.autograd.grad(trainer.push(true, moved), moved)
        moved = (moved - 4.0 * push / push.norm()).detach()
    with torch.no_grad():
        assert trainer.push(true, moved) < trainer.push(true, made)
    assert (moved - true).abs().mean() < (made - true).abs().mean()


def test_a_push_gets_its_share_of_the_pull() -> None:
    pull, push = torch.tensor([3.0, 4.0]), torch.tensor([0.0, 1e-6])
    torch.testing.assert_close(balanced(pull, push, 0.5), torch.tensor([0.0, 2.5]))
    assert torch.equal(balanced(pull, push, 0.0), torch.zeros(2))
    assert torch.equal(balanced(pull, torch.zeros(2), 1.0), torch.zeros(2))


def _refiner(student: Trainer, teacher: Trainer, own_pull: float = 1.0) -> Refiner:
    def decode(tokens: torch.Tensor) -> torch.Tensor:
        return tokens.view(-1, 1, 32, 32).expand(-1, 3, -1, -1)

    plan = RefinePlan(middle=0.8, pictures=2, first_judged=1, own_pull=own_pull)
    return Refiner(student, teacher, CriticTrainer(Critic(width=8)), decode, plan)


def _gradient(share: float, own_pull: float) -> torch.Tensor:
    student, teacher = (Trainer(_tiny(), PromptEncoder(8), PLAN) for _ in range(2))
    for trainer in (student, teacher):
        nn.init.zeros_(trainer.clip_model.model.proj_out.weight)
    teacher.clip_model.model.proj_out.bias.data.add_(1.0)
    torch.manual_seed(3)
    loss, said = _refiner(student, teacher, own_pull).loss(_batch(1), _batch(2), share)
    assert "pull" in said and "lead" in said
    loss.backward()  # type: ignore[no-untyped-call]
    bias: torch.Tensor = student.clip_model.model.proj_out.bias
    assert bias.grad is not None
    return bias.grad


def test_without_a_push_the_student_is_pulled_to_the_teacher() -> None:
    # The teacher's velocity is the student's plus one: the gradient of the mean squared error by the bias is -2 over 16
    # channels, on the true half of the clips and with its weight on the own half.
    torch.testing.assert_close(_gradient(0.0, 1.0), torch.full((16,), -2 / 16), rtol=1e-3, atol=0)
    torch.testing.assert_close(_gradient(0.0, 0.0), torch.full((16,), -1 / 16), rtol=1e-3, atol=0)


def test_a_push_changes_the_gradient() -> None:
    assert not torch.allclose(_gradient(0.0, 1.0), _gradient(1.0, 1.0), rtol=1e-3)


def test_only_frames_that_know_enough_are_judged() -> None:
    student = Trainer(_tiny(), PromptEncoder(8), PLAN)
    refiner = _refiner(student, student)
    for _ in range(10):
        rows = refiner.judged(torch.zeros(2, 3, 64, 16))
        assert rows.shape == (2,) and (rows % 3 >= 1).all()


def _world() -> WorldModel:
    torch.manual_seed(0)
    autoencoder = TinyAutoencoder().eval().requires_grad_(False)
    starts = Starts(torch.zeros(6, 1, 4, 64, 16), torch.zeros(6, 1, 4, 3))
    prompts = PromptEncoder(8).requires_grad_(False)
    return WorldModel(_tiny().requires_grad_(False).eval(), autoencoder, prompts, starts, LABYRINTH)


def test_own_walks_give_clips_of_what_was_made() -> None:
    walks = OwnWalks(_world(), ClipMaker(2, CPU), 2, 4)
    batch = walks.pick(3, 2)
    assert batch.latents.shape == (3, 2, 64, 16) and batch.latents.isfinite().all()
    assert batch.controls.shape == (3, 2, 3) and batch.words.shape[:2] == (3, 2)
    with pytest.raises(RuntimeError):
        walks.pick(1, 5)


def test_the_decoder_sharpens_and_latents_stay() -> None:
    torch.manual_seed(0)
    autoencoder = TinyAutoencoder().eval()
    pictures = torch.rand(2, 3, 128, 128)
    with torch.no_grad():
        latents, decoded = autoencoder.encode(pictures), autoencoder.decode(autoencoder.encode(pictures))
    lines: list[str] = []
    critic = CriticTrainer(Critic(width=8))
    sharpen_decoder(autoencoder, ClipMaker(1, CPU), critic, share=0.5, seconds=0.01, batch=1, log=lines.append)
    torch.testing.assert_close(autoencoder.encode(pictures), latents, rtol=0, atol=1e-4)
    assert not torch.equal(autoencoder.decode(latents), decoded)
    assert "decoder step 0" in lines[0] and not autoencoder.training


def _refine(tmp_path: Path, *options: str) -> tuple[WorldModel, str]:
    """Refine a tiny model for a moment; returns it as it was, and the log."""
    save_world_model(tmp_path / "weights", _world())
    world = load_world_model(tmp_path / "weights")
    save_state(tmp_path / "state", {"transformer": world.transformer, "prompt_encoder": world.prompt_encoder}, 1)
    small = ["--device", "cpu", "--clips", "2", "--frames", "5", "--bank", "2", "--walks", "1", "--walk-frames", "5"]
    sizes = ["--mazes", "0", "--pictures", "1", "--judged", "1", "--shares", "1.0"]
    brief = ["--teacher-seconds", "0.01", "--decoder-seconds", "0.01", "--stage-seconds", "0.01"]
    paths = [f"--{name}={tmp_path / name}" for name in ("out", "state", "weights")]
    refine.main([*small, *sizes, *brief, *paths, *options])
    return world, (tmp_path / "out" / "log.txt").read_text()


def test_a_refinement_writes_its_candidates(tmp_path: Path) -> None:
    world, log = _refine(tmp_path)
    decoder, refined = (load_world_model(tmp_path / "out" / name) for name in ("decoder", "stage1"))
    before, after = world.transformer.proj_out.weight, refined.transformer.proj_out.weight
    assert not torch.equal(before, after)
    torch.testing.assert_close(before, after, rtol=0.1, atol=0.02)
    assert torch.equal(world.transformer.proj_out.weight, decoder.transformer.proj_out.weight)
    drawn = decoder.autoencoder.state_dict()
    assert not torch.equal(world.autoencoder.state_dict()["decoder.0.weight"], drawn["decoder.0.weight"])
    kept = reach_beyond(world.autoencoder, decoder.autoencoder, 1.3).state_dict()
    for name, tensor in refined.autoencoder.state_dict().items():
        torch.testing.assert_close(tensor, kept[name], rtol=2e-3, atol=1e-4)
    assert torch.equal(world.starts.latents, refined.starts.latents)
    assert "stage 1: 1 steps at share 1.0" in log


def test_no_stage_begins_that_would_end_too_late(tmp_path: Path) -> None:
    log = _refine(tmp_path, "--limit-seconds", "0", "--teacher-seconds", "0", "--decoder-seconds", "0")[1]
    assert "no time left for stage 1" in log
    assert not (tmp_path / "out" / "stage1").exists() and not (tmp_path / "out" / "decoder").exists()


def test_every_schedule_asked_for_is_measured_beforehand(tmp_path: Path) -> None:
    sweep = ["--sweep-middles", "0.5", "--sweep-contexts", "0.1", "--shares"]
    _refine(tmp_path, "--mazes", "1", "--columns", "2", "--decoder-seconds", "0", "--teacher-seconds", "0", *sweep)
    tables = (tmp_path / "out" / "tables.md").read_text()
    assert "before: steps at (1.0, 0.5), remembered at 0.0" in tables
    assert "before: steps at (1.0, 0.8), remembered at 0.1" in tables
    assert tables.count("sharpness, long walk") == 2


def test_reaching_beyond_goes_on_along_the_way_from_the_old_decoder_to_the_new() -> None:
    torch.manual_seed(3)
    first, sharpened = TinyAutoencoder(), TinyAutoencoder()
    sharpened.encoder.load_state_dict(first.encoder.state_dict())
    beyond = reach_beyond(first, sharpened, 1.5)
    for start, end, far in zip(first.parameters(), sharpened.parameters(), beyond.parameters(), strict=True):
        torch.testing.assert_close(far - start, 1.5 * (end - start))
    assert all(torch.equal(a, b) for a, b in zip(first.encoder.parameters(), beyond.encoder.parameters(), strict=True))
