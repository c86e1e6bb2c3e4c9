"""The key `kernel` of a study: kernel files over GPUs and figures, each point as `predict --kernel` answers it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from attnsim.api.lifted import predict_kernel
from attnsim.cli import BAD_INPUT, main
from attnsim.errors import InputError
from attnsim.models.hardware.files import load_gpu
from attnsim.models.question.columns import ADDED_COLUMNS
from attnsim.models.schedule.kernel_file import digest_of, read_kernels
from attnsim.studies import Study, load, run
from attnsim.studies import study as studies
from attnsim.studies.answers import answer
from attnsim.studies.study_file import study_of
from tests.unit.answering import refused

FOREIGN = str(Path(__file__).parents[1] / "data" / "foreign.ptx")
ARGUMENTS = ("x=fp32[1000]", "y=fp32[1000]:empty", "n=1000", "scale=0.5")
A100 = "a100-sxm4-80gb"


@pytest.fixture
def file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    path = tmp_path / "scaled.yaml"
    given = [part for one in ARGUMENTS for part in ("--arg", one)]
    launch = ["--entry", "scaled", "--grid", "16", "--registers", "16", *given]
    assert main(["kernels", "trace", "--ptx", FOREIGN, *launch, "--out", str(path)]) == 0
    capsys.readouterr()
    return path


def asked(file: Path, **keys: Any) -> dict[str, Any]:
    return {"kernel": str(file), "gpu": [A100, "h100-sxm5-80gb"], "change": {"hbm.bandwidth": ["1x", "2x"]}} | keys


def frame_of(study: Study) -> pd.DataFrame:
    found: pd.DataFrame = answer(study, study.chunk(0)).to_pandas()
    return found


@pytest.mark.parametrize("cache", ["warm", "cold"])
def test_every_point_is_what_predict_says(file: Path, cache: str) -> None:
    frame = frame_of(study_of(asked(file, cache=cache)))
    added = list(ADDED_COLUMNS)
    assert list(frame) == ["point", "gpu", "hbm.bandwidth", "kernel", "cache", "launch", "method", *added]
    assert set(frame["method"]) == {"replay"} and set(frame["kernel"]) == {str(file)} and set(frame["error"]) == {""}
    for (_, row), (gpu, times) in zip(
        frame.iterrows(), [(one, times) for one in (A100, "h100-sxm5-80gb") for times in (1, 2)], strict=True
    ):
        machine = load_gpu(gpu)
        bandwidth = times * machine.get("hbm.bandwidth")
        said = predict_kernel(file, machine.replace("hbm.bandwidth", bandwidth), cache=cache)
        assert (row["gpu"], row["hbm.bandwidth"]) == (gpu, bandwidth)
        assert (row["predicted_s"], row["predicted_low_s"], row["predicted_high_s"]) == (
            said.time_s, said.time_low_s, said.time_high_s,
        )  # fmt: skip
        assert (row["busiest"], row["hbm_read_bytes"], row["hbm_write_bytes"]) == (
            said.busiest, said.hbm_read_bytes, said.hbm_write_bytes,
        )  # fmt: skip
        assert row["used_implementation"] == "scaled"
        assert row["trust"] == f"extrapolated: {said.trust.reason}"
        assert ("hypothetical" in row["trust"]) == (times == 2)


def test_a_range_of_a_figure_is_sampled(file: Path) -> None:
    change = {"clock.boost": {"from": "0.5x", "to": "1x"}}
    frame = frame_of(study_of(asked(file, gpu=A100, change=change, combine="sobol", points=8)))
    assert len(frame) == frame["clock.boost"].nunique() == 8
    by_clock = frame.sort_values("clock.boost")["predicted_s"]
    assert by_clock.is_monotonic_decreasing and by_clock.nunique() > 4
    for _, row in frame.iterrows():
        machine = load_gpu(A100).replace("clock.boost", row["clock.boost"])
        assert row["predicted_s"] == predict_kernel(file, machine).time_s


def test_several_files_are_an_axis_and_a_gpu_that_lacks_the_instructions_says_so(file: Path, tmp_path: Path) -> None:
    other = tmp_path / "hopper.yaml"
    other.write_text(file.read_text().replace("arch: '80'", "arch: 90a"))
    study = study_of(asked(file, kernel=[str(file), str(other)], change={}))
    assert [axis.column for axis in study.varying] == ["gpu", "kernel"] and len(study) == 4
    errors = frame_of(study)["error"].astype(str).tolist()
    assert errors[0] == errors[2] == errors[3] == ""
    assert errors[1].startswith(f"scaled is compiled for sm_90a; {A100} is sm_80: trace it for")


def test_a_run_goes_on_and_a_kernel_file_that_changed_is_other_inputs(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(studies, "REPLAYED_CHUNK", 1)
    out, seen = tmp_path / "out", 0

    def stop(points: int) -> None:
        nonlocal seen
        seen += points
        if seen == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(study_of(asked(file)), out, jobs=1, progress=stop)
    file.write_text(f"# a comment changes nothing\n{file.read_text()}")
    finished = run(study_of(asked(file)), out, jobs=2)
    assert (finished.found, finished.chunks) == (2, 4)
    run(study_of(asked(file)), tmp_path / "whole", jobs=1)
    pd.testing.assert_frame_equal(load(out), load(tmp_path / "whole"))
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["inputs"]["kernels"] == {str(file): digest_of(read_kernels(file))}
    before = study_of(asked(file)).digest()
    file.write_text(file.read_text().replace("bytes: 256", "bytes: 128"))
    assert study_of(asked(file)).digest() != before
    with pytest.raises(InputError, match="holds results of other inputs: study, kernels differ"):
        run(study_of(asked(file)), out, jobs=1)


def test_the_command_sums_up(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, out = tmp_path / "study.yaml", tmp_path / "out"
    path.write_text(yaml.safe_dump(asked(file, title="scaled")))
    command = ["sweep", str(path), "--out", str(out), "--jobs", "1"]
    assert main([*command, "--json", "--export", str(tmp_path / "all.csv")]) == 0
    (summary,) = json.loads(capsys.readouterr().out)
    assert summary["methods"] == {"replay": 4} and summary["answered"] == 4
    assert summary["axes"] == {"gpu": 2, "hbm.bandwidth": 2}
    assert summary["fastest"]["predicted_s"] == load(out)["predicted_s"].min()
    assert len(pd.read_csv(tmp_path / "all.csv")) == 4
    assert main(command) == 0
    assert "scaled: 4 points, cartesian of gpu (2), hbm.bandwidth (2)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"workload": {"batch": 1}}, "workload is not for kernel, whose file holds shapes"),
        ({"algorithm": "flash"}, "algorithm is not for kernel"),
        ({"implementation": "flash-attn.2"}, "implementation is not for kernel"),
        ({"tile": "128x64"}, "tile is not for kernel"),
        ({"method": "closed-form"}, "method is closed-form, but a kernel file has no closed form"),
        ({"replays": 3}, "replays is 3, but a kernel file has no closed form"),
        ({"kernel": []}, "kernel is an empty list"),
        ({"kernel": 3}, "kernel is 3"),
        ({"kernel": "absent.yaml"}, "kernel: absent.yaml: cannot be read"),
        ({"kernel": ["a.yaml", "a.yaml"]}, "kernel names 'a.yaml' twice"),
        ({"kernel": None}, "workload is missing; a study needs gpu, and workload or kernel"),
        ({"change": {"seq": [1, 2]}}, "change.seq: unknown key"),
    ],
)
def test_what_a_kernel_file_cannot_be_asked_is_one_line(file: Path, keys: dict[str, Any], told: str) -> None:
    assert told in refused(study_of, asked(file, **keys))


def test_a_wrong_file_writes_nothing_and_a_report_refuses_kernels(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = tmp_path / "study.yaml", tmp_path / "out"
    path.write_text(yaml.safe_dump(asked(file)))
    assert main(["report", str(path), "--out", str(tmp_path / "report.md")]) == BAD_INPUT
    assert "study.yaml: kernel is not for a report" in (told := capsys.readouterr().err) and told.count("\n") == 1
    file.write_text(file.read_text().replace("threads: 64", "threads: 0"))
    assert main(["sweep", str(path), "--out", str(out)]) == BAD_INPUT
    told = capsys.readouterr().err
    assert "study.yaml: kernel: scaled.yaml: scaled: threads is 0; allowed: 1 or more" in told
    assert told.count("\n") == 1 and not out.exists()
