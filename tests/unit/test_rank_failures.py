"""What a rank reports of a load that failed: one line with a code, and what to do."""

from __future__ import annotations

import pytest
import torch

from ithaka.workers.contract import MODEL_LOAD_FAILED, ConfigureRank
from ithaka.workers.families.base import FamilyLoadError
from ithaka.workers.out_of_memory import OUT_OF_MEMORY, is_out_of_memory
from ithaka.workers.rank import _failed
from ithaka.workers.stages.contract import Placement

CONFIGURE = ConfigureRank("m", 1, 2, "m", "synthetic", "cpu", Placement("whole", 1, 2, 2), 1, 1, 0.25, 3.0)


def caught(num_bytes: int) -> RuntimeError:
    with pytest.raises(RuntimeError) as error:
        torch.empty(num_bytes, dtype=torch.uint8)
    return error.value


def test_no_memory_on_the_cpu_is_told_from_other_faults() -> None:
    error = caught(1 << 60)
    assert is_out_of_memory(error)
    report = _failed(CONFIGURE, error, "start_failed")
    assert (report.rank, report.code, report.culprit_rank) == (1, OUT_OF_MEMORY, 1)
    assert report.message.startswith("models.m: no memory is left on cpu (") and "lower max_sessions" in report.message
    assert "\n" not in report.message


@pytest.mark.parametrize("error", [MemoryError(), torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")])
def test_so_are_the_other_words_for_it(error: Exception) -> None:
    assert _failed(CONFIGURE, error, "start_failed").code == OUT_OF_MEMORY


@pytest.mark.parametrize("error", [RuntimeError("shapes differ"), ValueError("DefaultCPUAllocator")])
def test_what_is_no_lack_of_memory_keeps_its_name(error: Exception) -> None:
    report = _failed(CONFIGURE, error, "start_failed")
    assert (report.code, report.message) == ("start_failed", f"{type(error).__name__}: {error}")


@pytest.mark.parametrize(("field", "subject"), [("", "models.m"), ("options.steps", "models.m.options.steps")])
def test_a_load_error_names_the_field_and_is_one_line(field: str, subject: str) -> None:
    report = _failed(CONFIGURE, FamilyLoadError("does not fit:\n\tmissing a", field=field), "start_failed")
    assert (report.code, report.message) == (MODEL_LOAD_FAILED, f"{subject}: does not fit: missing a")
