"""The table of launches: the packaged one, and how one is chosen from a sweep."""

from __future__ import annotations

import json

import pytest
from benchmarks.ulysses_choice import UNBOUNDED_BYTES, choose_table

from ithaka.comm_ext.ulysses.cuda_calibration import Calibration, Launch

KERNEL, WIDE, COPIES = Launch(16, 8, 0.0), Launch(100, 32, 0.0), Launch(0, 64, 1.0)


def sweep_of(times: dict[str, tuple[tuple[Launch, float, float], ...]]) -> dict[str, dict[str, float]]:
    return {
        f"{direction} {shape}": {launch.facts(): row[at] for launch, *row in rows}
        for shape, rows in times.items()
        for at, direction in enumerate(("scatter", "gather"))
    }


def test_each_size_gets_what_is_fastest_there_and_back() -> None:
    sweep = sweep_of(
        {
            "256x8": ((KERNEL, 5.0, 5.0), (WIDE, 4.9, 6.0)),  # 25 against 29.4
            "4680x12": ((KERNEL, 16.0, 18.0), (WIDE, 15.0, 19.0)),  # 288 against 285
            "32760x40": ((WIDE, 240.0, 240.0), (COPIES, 224.0, 228.0)),
        }
    )
    table = Calibration.from_plain(choose_table(sweep, 2, 256, "somewhere"))
    assert table.measured_on == "somewhere"
    assert [row.launch for row in table.rows] == [KERNEL, WIDE, COPIES]
    assert table.rows[-1].max_wire_bytes == UNBOUNDED_BYTES
    assert table.launch_for(2, 32760 * 40 * 64, 5120, "auto") == COPIES


def test_sizes_in_between_take_the_nearer_one() -> None:
    sweep = sweep_of({"100x1": ((KERNEL, 1.0, 1.0), (WIDE, 2.0, 2.0)), "10000x1": ((KERNEL, 9.0, 9.0), (WIDE, 8.0, 8.0))})
    table = Calibration.from_plain(choose_table(sweep, 2, 4, "somewhere"))
    assert [(row.max_wire_bytes, row.launch) for row in table.rows] == [(1000, KERNEL), (UNBOUNDED_BYTES, WIDE)]


def test_short_rows_of_the_same_size_may_be_better_off_another_way() -> None:
    sweep = sweep_of(
        {
            "100x2": ((KERNEL, 1.0, 1.0), (WIDE, 2.0, 2.0)),
            "10000x2": ((WIDE, 9.0, 9.0), (COPIES, 30.0, 30.0)),
            "2500x8": ((WIDE, 9.0, 9.0), (COPIES, 10.0, 10.0)),
            "625x32": ((WIDE, 9.0, 9.0), (COPIES, 8.0, 8.0)),
        }
    )
    table = Calibration.from_plain(choose_table(sweep, 2, 256, "somewhere"))
    large = 10000 * 2 * 64
    found = {
        row_bytes: table.launch_for(2, large, row_bytes, "auto") for row_bytes in (1, 256, 1024, 2047, 2048, 4096, 1 << 20)
    }
    assert found == {1: WIDE, 256: WIDE, 1024: WIDE, 2047: WIDE, 2048: COPIES, 4096: COPIES, 1 << 20: COPIES}
    assert table.launch_for(2, 100 * 2 * 64, 1 << 20, "auto") == KERNEL
    assert table.launch_for(2, large, 4096, "sm") == WIDE


def test_a_table_serves_rows_of_any_length() -> None:
    row = {
        "num_ranks": 2,
        "max_wire_bytes": 1,
        "min_row_bytes": 64,
        "remote_blocks": 8,
        "local_blocks": 8,
        "copied": 0.0,
    }
    with pytest.raises(ValueError, match="rows of any length"):
        Calibration.from_plain({"measured_on": "x", "rows": [row]})


def test_one_engine_can_be_asked_for() -> None:
    sweep = sweep_of({"100x1": ((KERNEL, 1.0, 1.0),), "10000x1": ((COPIES, 9.0, 9.0),)})
    table = Calibration.from_plain(choose_table(sweep, 2, 4, "somewhere"))
    assert table.launch_for(2, 1 << 30, 4, "sm") == KERNEL
    assert table.launch_for(2, 1, 4, "copy_engine") == Launch(0, KERNEL.local_blocks, 1.0)
    assert table.launch_for(8, 1 << 30, 4, "auto") == COPIES, (
        "the nearest number of ranks stands in for one that was not measured"
    )


def test_the_packaged_table_says_where_it_was_measured() -> None:
    table = Calibration.shipped()
    assert "H200" in table.measured_on
    assert table.rows[-1].max_wire_bytes == UNBOUNDED_BYTES
    assert {row.num_ranks for row in table.rows} == {2}


@pytest.mark.parametrize(("remote", "local", "copied"), [(0, 8, 0.5), (8, 8, 1.0), (-1, 8, 0.0), (8, 0, 0.0), (384, 8, 0.0)])
def test_rows_that_move_nothing_or_twice_are_refused(remote: int, local: int, copied: float) -> None:
    row = {
        "num_ranks": 2,
        "max_wire_bytes": 1,
        "min_row_bytes": 0,
        "remote_blocks": remote,
        "local_blocks": local,
        "copied": copied,
    }
    with pytest.raises(ValueError, match="calibration row"):
        Calibration.from_plain(json.loads(json.dumps({"measured_on": "x", "rows": [row]})))
