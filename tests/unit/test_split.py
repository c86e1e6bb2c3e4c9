"""What each measured source may be used for: declared once, whole, and kept to."""

from pathlib import Path

import pytest

from attnsim.errors import InputError
from attnsim.models.calibrations.calibration import calibrations
from attnsim.validation.fitting.jobs import jobs
from attnsim.validation.measured import aiconfigurator, sources
from attnsim.validation.measured.aiconfigurator_files import PACKAGE, VERSION
from attnsim.validation.measured.datasets import published_cases, published_rows
from attnsim.validation.measured.sources import ROLES, laboratory_of, role_of, software_of, split

H200 = f"{PACKAGE}-{VERSION}/h200_sxm/attention/vllm/0.24.0/context_attention_perf"


def test_numbers_are_fitted_on_fit_sources_alone() -> None:
    for job in jobs():
        assert {role_of(source) for source in job.sources} == {"fit"}, job.name
    for name, calibration in calibrations().items():
        assert {role_of(source) for source in calibration.sources} == {"fit"}, name
    assert {role_of(row.case.source) for row in published_rows()} == {"fit"}


def test_every_published_row_has_one_role() -> None:
    every = [case.source for case in published_cases(*ROLES)]
    assert len(every) == sum(len(list(published_cases(role))) for role in ROLES)
    assert set(every) == set(split().published)


@pytest.mark.skipif(not aiconfigurator.available(), reason=aiconfigurator.missing())
def test_every_serving_table_has_a_role_and_unseen_gpus_are_tests() -> None:
    for table in aiconfigurator.tables():
        role = role_of(f"{PACKAGE}-{VERSION}/{table.file.name}")
        if table.gpu in ("h200-sxm-141gb", "gb200", "rtx-pro-6000-server"):
            assert role == "test"


def test_a_serving_table_is_found_by_its_system_framework_and_version() -> None:
    assert (role_of(H200), laboratory_of(H200), software_of(H200, "vllm")) == ("test", sources.SERVING, "vllm 0.24.0")
    assert role_of(H200.replace("h200", "h100")) == "fit"
    assert role_of(H200.replace("h200", "h100").replace("0.24.0", "0.9")) == "choose"
    assert software_of("cudnn_fe_train_20260928", "nvidia") == "nvidia 9.27.0"
    assert not software_of("cudnn_fe_train_20260928", "flash-attn"), "ran beside cuDNN in a version that is not told"
    with pytest.raises(InputError, match="gives 'somebody' no role"):
        role_of("somebody")


def test_a_source_without_a_role_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (sources.MEASUREMENTS / "split.yaml").read_text("utf-8").replace("  fa2_fig4: fit\n", "")
    tmp_path.joinpath("split.yaml").write_text(text, encoding="utf-8")
    monkeypatch.setattr(sources, "MEASUREMENTS", tmp_path)
    split.cache_clear()
    sources.sources.cache_clear()
    try:
        with pytest.raises(InputError, match=r"split.yaml and sources.csv differ in fa2_fig4"):
            sources.sources()
    finally:
        monkeypatch.undo()
        split.cache_clear()
        sources.sources.cache_clear()
