"""What a profiler counted: its CSV read whatever stands around it, and set beside what the replay predicts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from attnsim.errors import InputError
from attnsim.models.calibrations.choose import choose
from attnsim.models.hardware.files import load_gpu
from attnsim.models.implementations.choose import find_implementation
from attnsim.models.question.case_row import Case, parse_row, workload_of
from attnsim.models.schedule.schedule import Schedule
from attnsim.simulator.replay import replay
from attnsim.validation.checking.io_errors import compare_io
from attnsim.validation.measuring.counters import Counted, parse_counters, read_counters

# As Nsight Compute 2025 writes it, values made up: remarks of its own, the program's line, header, units, launches.
CSV = """==PROF== Connected to process 143016 (/usr/bin/python3.12)
==PROF== Profiling "flash_forward" - 0: 0%....50%....100% - 2 passes
flash on h200-sxm-141gb
==PROF== Disconnected from process 143016
"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size","Device","CC",\
"dram__bytes_read.sum","dram__bytes_write.sum","gpu__time_duration.sum","lts__t_bytes.sum"
"","","","","","","","","","","","byte","byte","ns","byte"
"0","143016","python3.12","127.0.0.1","flash_forward","1","7","(256, 1, 1)","(264, 2, 1)","0","9.0",\
"50,331,648","16,777,216","223,104","2,147,483,648"
"1","143016","python3.12","127.0.0.1","void at::vectorized<4>(float*)","1","7","(128, 1, 1)","(8, 1, 1)","0","9.0",\
"1,024","0","2,048.50","4,096"
"""


def test_launches_are_read_in_base_units() -> None:
    first, second = parse_counters(CSV)
    assert first == Counted("flash_forward", 528, 50_331_648, 16_777_216, 2_147_483_648, 223_104e-9)
    assert (second.kernel, second.blocks) == ("at::vectorized", 8) and second.time_s == pytest.approx(2.0485e-6)


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ('"byte","byte","ns","byte"', '"Mbyte","byte","usecond","byte"', (50_331_648_000_000, 0.223104)),
        ('"ns"', '"nsecond"', (50_331_648, 223_104e-9)),
        ('"flash_forward",', '"flash_forward(const unsigned short *, int)",', (50_331_648, 223_104e-9)),
        ('"223,104"', '"n/a"', (50_331_648, None)),
        ('"(264, 2, 1)"', '""', (50_331_648, 223_104e-9)),
    ],
)
def test_other_releases_are_read_too(before: str, after: str, expected: tuple[int, float | None]) -> None:
    assert before in CSV
    first = parse_counters(CSV.replace(before, after))[0]
    assert first.kernel == "flash_forward" and first.hbm_read_bytes == expected[0]
    assert first.time_s == (expected[1] if expected[1] is None else pytest.approx(expected[1]))


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        (
            CSV,
            "==ERROR== ERR_NVGPUCTRPERM - no permission\n",
            "may not read counters (ERR_NVGPUCTRPERM); attnsim doctor",
        ),
        (CSV, "flash on h200\n", 'no line that begins with "ID"; run ncu with --csv --page raw'),
        ('"lts__t_bytes.sum"', '"other.sum"', "no column lts__t_bytes.sum; add --metrics dram__bytes_read.sum,"),
        ('"CC",', '"CC","Metric Name",', "a line for each metric, not for each kernel"),
        ('"","","","","","","","","","","","byte"', '"9","","","","","","","","","","","byte"', "no line of units"),
        ('"byte","byte","ns"', '"byte","sector","ns"', "dram__bytes_write.sum is in 'sector'; known: byte,"),
        ('"16,777,216"', '"16.777.216"', "dram__bytes_write.sum is '16.777.216'; a number such as 1,234 is needed"),
        ('"16,777,216"', '"16.777"', "not a whole number; run ncu with LC_ALL=C"),
        ('"16,777,216"', '"n/a"', "flash_forward (ID 0): dram__bytes_write.sum is 'n/a'"),
    ],
)
def test_what_cannot_be_read_is_said_with_the_fix(before: str, after: str, told: str) -> None:
    assert before in CSV
    with pytest.raises(InputError) as error:
        parse_counters(CSV.replace(before, after), "counters.csv")
    assert told in str(error.value) and str(error.value).startswith("counters.csv") and "\n" not in str(error.value)


def test_a_file_is_read_as_its_text(tmp_path: Path) -> None:
    path = tmp_path / "counters.csv"
    path.write_text(CSV)
    assert read_counters(path) == parse_counters(CSV)
    with pytest.raises(InputError, match="cannot be read"):
        read_counters(tmp_path / "nowhere.csv")


GPU = "h100-sxm5-80gb"
FLASH = {"gpu": GPU, "implementation": "attnsim.flash", "batch": 2, "heads_q": 16, "seq_q": 2048, "head_dim": 128}
NAIVE = {**FLASH, "implementation": "attnsim.naive", "seq_q": 1024}


def case(**cells: object) -> Case:
    return parse_row(cells)


def schedule_of(one: Case) -> Schedule:
    return find_implementation(one.implementation or "").build(workload_of(one), load_gpu(one.gpu), None)


def launches(one: Case, read: float = 1.0, write: float = 1.0) -> list[Counted]:
    """What a profiler would count where the replay of each kernel were right, times a factor."""
    found, gpu = [], load_gpu(one.gpu)
    schedule = schedule_of(one)
    numbers = choose(find_implementation(one.implementation or ""), gpu).numbers
    for kernel in schedule.kernels:
        alone = replay(replace(schedule, kernels=(kernel,)), gpu, numbers, cache="cold")
        found.append(
            Counted(
                kernel.name,
                kernel.blocks,
                round(read * alone.hbm_read_bytes),
                round(write * alone.hbm_write_bytes),
                alone.l2_bytes,
            )
        )
    return found


FILL = Counted("cupy_fill", 100, 0, 10**9, 10**9)


def test_predicted_bytes_stand_beside_counted_ones() -> None:
    one = case(**FLASH)
    (line,) = compare_io([FILL, *launches(one, read=1.25, write=0.5), FILL], [one])
    assert (line["implementation"], line["kernel"], line["calls"], line["gpu"]) == (
        "attnsim.flash",
        "flash_forward",
        1,
        GPU,
    )
    assert line["hbm_read_error"] == pytest.approx(1 / 1.25 - 1, abs=1e-6)
    assert line["hbm_write_error"] == pytest.approx(1.0, abs=1e-6) and line["l2_error"] == 0
    compulsory = 4 * 2 * 16 * 2048 * 128 * 2
    assert line["hbm_read_bytes"] >= compulsory * 3 // 4 and line["hbm_write_bytes"] >= compulsory // 4
    json.dumps(line)


def test_a_call_of_several_kernels_has_a_line_for_each_and_one_for_all() -> None:
    one = case(**NAIVE)
    counted = launches(one)
    lines = compare_io(counted, [one])
    assert [line["kernel"] for line in lines] == [*(launch.kernel for launch in counted), "all"]
    assert lines[-1]["hbm_read_bytes"] == pytest.approx(sum(line["hbm_read_bytes"] for line in lines[:-1]), abs=3)
    assert lines[-1]["l2_counted"] == sum(launch.l2_bytes for launch in counted)


def test_calls_are_told_apart_by_grid_and_by_order() -> None:
    short, long = case(**{**FLASH, "seq_q": 1024}), case(**FLASH)
    wide = case(**{**FLASH, "heads_q": 8, "batch": 4})  # as many blocks as the long one
    assert [k.blocks for k in schedule_of(wide).kernels] == [k.blocks for k in schedule_of(long).kernels]
    ran = [*launches(short), *launches(short, read=3), *launches(short), *launches(long), *launches(wide, read=2)]
    lines = compare_io(ran, [short, long, wide])
    assert [line["calls"] for line in lines] == [3, 1, 1]
    errors = [line["hbm_read_error"] for line in lines]
    assert errors == pytest.approx([0, 0, -0.5], abs=1e-6)  # the median of three calls passes over the odd one


def refused(counted: Sequence[Counted], cases: Sequence[Case]) -> str:
    with pytest.raises(InputError) as error:
        compare_io(counted, cases)
    return str(error.value)


def test_what_does_not_match_is_refused_by_name() -> None:
    short, long = case(**{**FLASH, "seq_q": 1024}), case(**FLASH)
    blocks = schedule_of(short).kernels[0].blocks
    told = refused(launches(long), [short, long])
    assert f"launches flash_forward with {blocks} blocks; flash_forward with {2 * blocks} blocks came instead" in told
    assert "nothing came instead" in refused([FILL], [short])
    assert "launches left over after all 1 cases: 1, the first flash_forward with" in refused(
        [*launches(short), *launches(long)], [short]
    )
    assert "2 cases in a row launch" in refused(launches(short) * 3, [short, short])
    assert "a case has no implementation" in refused(
        [], [case(**{k: v for k, v in FLASH.items() if k != "implementation"})]
    )


def test_an_older_profiler_without_grids_is_told_apart_by_order_alone() -> None:
    one = case(**NAIVE)
    blind = [
        Counted(each.kernel, None, each.hbm_read_bytes, each.hbm_write_bytes, each.l2_bytes) for each in launches(one)
    ]
    assert compare_io(blind * 2, [one])[-1]["calls"] == 2


def test_nothing_counted_leaves_the_error_open() -> None:
    one = case(**FLASH)
    assert compare_io(launches(one, write=0.0), [one])[0]["hbm_write_error"] is None
