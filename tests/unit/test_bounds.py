"""What a command may take: large values are answered within bounds or refused at once; nowhere to print; long input."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from attnsim import bounds
from attnsim.arrays import Ints
from attnsim.cli import main
from attnsim.errors import QUOTED, InputError
from attnsim.models.mask.block_patterns import Random
from attnsim.models.mask.mask import Mask
from attnsim.models.mask.tile_counts import tile_counts
from attnsim.ptx.nvrtc import CompileError
from benchmarks.large_values import FILL, FURTHER, lines, wrong

SPARSE = ("predict", "--gpu", "h100", "--heads", "2", "--head-dim", "64", "--algorithm", "sparse", "--mask")


@pytest.fixture
def fill(tmp_path: Path) -> list[str]:
    path = tmp_path / "fill.ptx"
    path.write_text(FILL, encoding="utf-8")
    return ["--ptx", str(path), "--block", "256"]


def test_large_values_are_answered_within_bounds_or_refused_at_once(tmp_path: Path) -> None:
    """`benchmarks/large_values.py` draws more."""
    drawn = list(lines(len(FURTHER), seed=DRAWN, folder=str(tmp_path)))
    assert {line: found for line in drawn if (found := wrong(line, str(tmp_path)))} == {}


DRAWN = 0


def test_a_mask_of_too_many_tiles_is_refused_before_it_is_drawn(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn, draws = [], Random.draws

    def noted(part: Random, rows: Ints, keys: int) -> Ints:
        drawn.append(keys)
        return draws(part, rows, keys)

    monkeypatch.setattr(Random, "draws", noted)
    assert main([*SPARSE, "random 50 % x64", "--seq", "16M"]) == 2
    assert max(drawn) <= 1024  # where it is seen whose tiles fit
    assert "16777216 x 16777216 would take about" in capsys.readouterr().err


@pytest.mark.parametrize(
    "text", ["random 3x16", "random 40x64", "block window 3x64", "global 500", "document 2000 2096", "prefix 1000"]
)
def test_no_fewer_tiles_are_foreseen_than_are_looked_at(text: str) -> None:
    mask = Mask.parse(text)
    (part,) = mask.parts
    counts = tile_counts(mask.band, mask.parts, 4096, 4096, 64, 64)
    assert int(counts.visits.sum()) <= part.looked_at(counts.tiles) <= 3 * int(counts.visits.sum())


def test_whoever_asks_for_it_may_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match=r"^x would take about 3\.0 GiB of memory; allowed: 2 GiB; .*--unbounded"):
        bounds.check_cost("x", memory_bytes=3 << 30)
    monkeypatch.setenv(bounds.UNBOUNDED, "")  # restored when the test ends
    assert main(["--unbounded", "algorithms"]) == 0
    bounds.check_cost("x", memory_bytes=3 << 30, time_s=1e9)


def test_arrays_are_refused_before_they_are_made(fill: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kernels", "run", *fill, "--grid", "1", "--arg", "s=fp32[1000000,100000]"]) == 2
    assert "arrays of s would take about 2,235.2 GiB of memory" in capsys.readouterr().err


@pytest.mark.parametrize("command", [["run"], ["trace", "--registers", "16"]])
def test_a_grid_that_takes_too_long_is_refused_by_its_first_blocks(
    command: list[str], fill: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["kernels", *command, *fill, "--grid", "10000000", "--arg", "s=fp32[256]"]) == 2
    assert "would take about" in capsys.readouterr().err


def test_exact_mode_says_how_long_it_takes(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["predict", "--gpu", "h100", "--heads", "32", "--head-dim", "128", "--seq", "1M", "--mode", "exact"]
    assert main(asked) == 2
    assert "segment executions would take about" in capsys.readouterr().err


def test_parts_of_equal_work_foretell_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    now, seen = [0.0], []
    monkeypatch.setattr("time.process_time", lambda: now[0])
    with bounds.watched("x", lambda begun, total: seen.append((begun, total))):
        for begun in (1, 2, 3):
            bounds.reached(begun, 10)
            now[0] += 5  # 10 parts take 50 s
            bounds.look()
        with pytest.raises(InputError, match=r"x would take about 215 s"):
            bounds.reached(1, 100)
            now[0] += 2
            bounds.look()
    assert seen == [(1, 10), (2, 10), (3, 10), (1, 100)]
    bounds.reached(1, 1 << 60)  # nobody watches


@pytest.mark.parametrize("where", ["> /dev/full", ">&-"])
def test_nowhere_to_print_is_one_line(where: str) -> None:
    command = f'"{sys.executable}" -m attnsim algorithms {where}'
    ran = subprocess.run(["/bin/sh", "-c", command], check=False, stderr=subprocess.PIPE, text=True)
    assert (ran.returncode, ran.stderr.count("\n")) == (2, 1), ran.stderr
    assert ran.stderr.startswith("error: ")


def test_a_lock_on_a_full_disk_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full() -> str:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("socket.gethostname", full)  # stands in the text that the lock gets
    assert main(["sweep", "examples/study.yaml", "--out", str(tmp_path / "out")]) == 2
    assert "lock cannot be written: No space left on device" in capsys.readouterr().err


@pytest.mark.parametrize("word", ["x" * 5000, "x y " * 2000])
def test_a_refusal_quotes_the_beginning_of_long_input(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SPARSE, word, "--seq", "1k"]) == 2
    told = capsys.readouterr().err
    assert word[:100].strip() in told
    assert word[: QUOTED + 1].strip() not in told


def test_a_message_has_no_word_longer_than_that() -> None:
    text = f"NVIDIA's {'word ' * 60}isn't {'y' * QUOTED}"
    assert str(InputError(text)) == text
    assert str(InputError(f"is '{'a' * 1000}', not b")) == f"is '{'a' * (QUOTED - 4)}... not b"


def test_a_compilers_log_is_cut_to_its_first_error() -> None:
    log = 'k.cu(1): warning: w\n\nk.cu(3): error: "N" is undefined\n  float x = N;\nk.cu(9): error: b\n\n2 errors found'
    assert str(CompileError(log)) == 'k.cu(3): error: "N" is undefined (the first of 2)'
    assert str(CompileError("PTX is too old")) == "PTX is too old"
