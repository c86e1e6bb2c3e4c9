"""The page as files."""

import json
from pathlib import Path

import pytest

from attnsim.cli import main
from attnsim.explore import build, pictures
from attnsim.explore.server import page_files
from tests.explore.asking import Server

SMALL = {"gpu": ("h100-sxm5-80gb", "l4"), "model": ("llama-3-8b",), "pass": ("decode",)}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A build of two GPUs, one figure and two pictures."""
    monkeypatch.setattr(build, "CASES", SMALL)
    monkeypatch.setattr(build, "TURNED", ("hbm",))
    monkeypatch.setattr(
        "attnsim.explore.pictures.PICTURES", {name: pictures.PICTURES[name] for name in ("units", "roofline")}
    )


@pytest.mark.usefixtures("small")
def test_the_files_hold_what_the_server_answers(tmp_path: Path) -> None:
    told: list[int] = []
    site, server = tmp_path / "site", Server()
    files = build.build(site, told.append)
    assert files == sum(path.is_file() for path in site.rglob("*")) and sum(told) == build.count() == 6
    static = json.loads((site / "static.json").read_text())
    assert static["grid"] == {name: list(values) for name, values in SMALL.items()} | {"hbm": ["1x", "1.5x", "2x"]}
    assert set(static["catalogues"]) == {"model=llama-3-8b&pass=decode", "gpu=l4&model=llama-3-8b&pass=decode"}
    assert len(static["headlines"]) == 6 and len(static["pictures"]) == 4
    for query, answer in static["headlines"].items():
        state = dict(part.split("=") for part in query.split("&"))
        assert build.query(state) == query and answer == without_number(server.api("headline", state))
    for query, name in static["pictures"].items():
        state, found = dict(part.split("=") for part in query.split("&")), json.loads((site / name).read_text())
        assert set(found) == {"units", "roofline", "said"} and set(found["said"]) == {"units", "roofline", "headline"}
        for picture in ("units", "roofline"):
            assert found[picture] == without_number(server.api("picture", state, name=picture))
    server.close()
    for name, path in page_files().items():
        where = site / (name if name == "index.html" else f"page/{name}")
        assert where.read_bytes() == path.read_bytes()
    assert build.build(site) == files  # an earlier build is replaced
    assert [path.name for path in tmp_path.iterdir()] == ["site"]


def without_number(answer: dict[str, object]) -> dict[str, object]:
    return {key: value for key, value in answer.items() if key != "n"}


def test_a_state_has_one_name() -> None:
    assert build.query({"gpu": "h100-sxm5-80gb", "l2": "1x", "v": "0.1.0", "cal": "x", "pass": "prefill"}) == ""
    assert build.query({"pass": "decode", "hbm": "2x", "exp": "1x"}) == "hbm=2x&pass=decode"


@pytest.mark.parametrize("held", ["mine.txt", "static.json"])
def test_a_folder_with_something_else_is_left_alone(
    held: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / held).write_text('{"made_by": "somebody else"}')
    assert main(["explore", "--build", str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith(f"error: --build {tmp_path} is not empty and no earlier build;")
    assert [path.name for path in tmp_path.iterdir()] == [held]


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    for name in ("nowhere/site", "file", "file/site"):
        assert main(["explore", "--build", str(tmp_path / name)]) == 2
        assert capsys.readouterr().err.startswith("error: --build ")
    assert main(["explore", "--build", str(tmp_path / "site"), "--port", "8000"]) == 2
    assert "leave one out" in capsys.readouterr().err


@pytest.mark.usefixtures("small")
def test_nothing_is_left_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(states: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("attnsim.explore.build._answer", lambda *given: {"version": "", "ok": True})
    with pytest.raises(KeyboardInterrupt):
        build.build(tmp_path / "site", fail)
    assert not list(tmp_path.iterdir())
