"""What several modules need, made once."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.cuda_emulation import compile_engine


@pytest.fixture(scope="session")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The CUDA engine, compiled for this CPU."""
    return compile_engine(tmp_path_factory.mktemp("engine"))
