"""``stages`` in a model's section: what it derives, and every way to get it wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ithaka.configs.load import ConfigError, load_config
from ithaka.configs.schema import ModelSection, StagesSection
from ithaka.server.model_group import places_of, rank_fds
from ithaka.workers.child_socket import close_fds
from ithaka.workers.stages.contract import Placement, Stage


def section(**values: Any) -> ModelSection:
    return ModelSection.model_validate({"name": "m", "family": "synthetic", **values})


def test_ranks_follow_from_denoise_and_may_be_repeated() -> None:
    for stages in ({"denoise": [0, 1], "decode": [2]}, StagesSection(denoise=(0, 1), decode=(2,))):
        assert section(stages=stages).ranks == 2
        assert section(stages=stages, ranks=2).ranks == 2
    assert section().stages is None and section().ranks == 1


def test_stages_are_shown_in_words() -> None:
    assert str(StagesSection(denoise=(0, 1), decode=(2,))) == "denoise 0 1, decode 2"
    assert str(StagesSection(denoise=(0,), decode=(1,), verify=(2,))) == "denoise 0, decode 1, verify 2"


def test_each_process_learns_its_place() -> None:
    model = section(stages={"denoise": [1, 0], "decode": [4], "verify": [5]})
    takers: tuple[Stage, ...] = ("decode", "verify")
    devices = (1, 4, 5)
    assert places_of(model) == (
        Placement("denoise", 1, 6, 4, takers, devices),
        Placement("denoise", 0, 6, 4),
        Placement("decode", 4, 6, 4, takers, devices),
        Placement("verify", 5, 6, 4, takers, devices),
    )
    assert places_of(section(stages={"denoise": [2, 3], "decode": [2]})) == (
        Placement("overlapped", 2, 4, 2),
        Placement("overlapped", 3, 4, 2),
    )
    assert places_of(section(ranks=2)) == (Placement("whole", 0, 2, 2), Placement("whole", 1, 2, 2))


@pytest.mark.parametrize(("num_ranks", "num_takers"), [(1, 1), (1, 2), (2, 1), (4, 2)])
def test_each_stage_apart_gets_a_socket_to_the_leader(num_ranks: int, num_takers: int) -> None:
    fds = rank_fds(num_ranks, num_takers=num_takers)
    try:
        shared = 2 if num_ranks > 1 else 0
        assert [len(own) for own in fds] == [
            shared + num_ranks - 1 + num_takers,
            *([shared + 1] * (num_ranks - 1)),
            *([1] * num_takers),
        ]
    finally:
        for own in fds:
            close_fds(own)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("stages: {denoise: [0], decode: []}", "models.0.stages.decode = []: Tuple should have at least 1 item"),
        ("stages: {denoise: [], decode: [1]}", "models.0.stages.denoise = []: Tuple should have at least 1 item"),
        ("stages: {denoise: [0], decode: [1, 2]}", "models.0.stages.decode = [1, 2]: Tuple should have at most 1 item"),
        ("stages: {denoise: [0, 1, 2, 3, 4, 5, 6, 7, 8], decode: [9]}", "models.0.stages.denoise = [0, 1"),
        ("stages: {denoise: [0, 0], decode: [1]}", "models.0.stages.denoise = [0, 0]: each rank needs a device of its own"),
        ("stages: {denoise: [-1], decode: [1]}", "models.0.stages.denoise.0 = -1: Input should be greater than or equal to 0"),
        ("stages: {denoise: [0], decode: [64]}", "models.0.stages.decode.0 = 64: Input should be less than or equal to 63"),
        ("stages: {denoise: [zero], decode: [1]}", "models.0.stages.denoise.0 = 'zero': Input should be a valid integer"),
        ("stages: {denoise: 0, decode: [1]}", "models.0.stages.denoise = 0: Input should be a valid tuple"),
        ("stages: {decode: [1]}", "models.0.stages.denoise: Field required"),
        ("stages: {denoise: [0]}", "models.0.stages.decode: Field required"),
        (
            "stages: {denoise: [0], decode: [1], upscale: [2]}",
            "models.0.stages.upscale: no such field; known here: decode, denoise, verify",
        ),
        ("stages: [0]", "models.0.stages: expected a mapping with fields of decode, denoise, verify"),
        ("stages: {denoise: [0, 1], decode: [1]}", "models.0.stages: decode: device 1 is that of rank 1"),
        ("stages: {denoise: [0], decode: [1], verify: [1]}", "models.0.stages: verify: a second opinion needs a device"),
        ("stages: {denoise: [0], decode: [1], verify: [0]}", "models.0.stages: verify: a second opinion needs a device"),
        ("stages: {denoise: [0], decode: [0], verify: [1]}", "models.0.stages: verify: it compares with a decode on a device"),
        ("ranks: 1, stages: {denoise: [0, 1], decode: [2]}", "models.0: ranks: 1, but stages.denoise names 2 devices"),
        (
            "device: 'cuda:1', stages: {denoise: [0], decode: [1]}",
            "models.0: device: 'cuda:1' names a device and so does stages",
        ),
    ],
)
def test_an_error_names_the_field(tmp_path: Path, text: str, expected: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(f"models: [{{name: m, family: synthetic, {text}}}]\n")
    with pytest.raises(ConfigError) as caught:
        load_config(path, {}, {})
    assert expected in str(caught.value)
