"""What the doctor says of a model whose stages name devices that are not there."""

from __future__ import annotations

import pytest

from ithaka.configs.schema import ServeConfig
from ithaka.server import doctor


@pytest.mark.parametrize(("num_devices", "is_fine"), [(3, True), (2, False)], ids=["enough devices", "one too few"])
def test_the_numbers_in_stages_are_counted(num_devices: int, is_fine: bool) -> None:
    model = {"name": "m", "family": "synthetic", "device": "cuda", "stages": {"denoise": [0], "decode": [2]}}
    config = ServeConfig.model_validate({"models": [model]})
    finding = doctor._model(config, "m", doctor.Probe(("GPU",) * num_devices))
    assert finding.good == is_fine
    assert finding.value == "synthetic, denoise 0, decode 2 on cuda"
    assert is_fine or "lower the numbers in `stages`" in finding.advice
