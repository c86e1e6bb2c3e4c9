"""The documents: every example runs, every command is one, every link leads somewhere."""

import contextlib
import io
import json
import re
from importlib import resources
from pathlib import Path

import jsonschema
import pytest
import yaml
from typer.main import get_command

from attnsim import load_gpu
from attnsim.cli import main
from attnsim.cli.app import app
from benchmarks.refresh_readme import DATE, FENCE, blocks, commands, documents, name_of, write_files

DOCUMENTS = {name_of(path): path.read_text(encoding="utf-8") for path in documents()}
EVERYTHING = {*DOCUMENTS, "CHANGELOG.md"}
CHANGELOG = (documents()[0].parent / "CHANGELOG.md").read_text(encoding="utf-8")
COMMANDS = {*get_command(app).commands, "--version", "--help"}  # type: ignore[attr-defined]
"""A command that takes longer on a laptop is to be marked `# takes ...`."""


@pytest.mark.parametrize("name", DOCUMENTS)
def test_commands_are_answered(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("attnsim.reports.pictures.LOOKS", ((False, False),))  # no output shows the other three
    write_files(DOCUMENTS[name], tmp_path)
    seen = set()
    for language, content in blocks(DOCUMENTS[name]):
        for command in commands(content) if language == "console" else []:
            words = command.words
            if words[0] == "cat":
                (tmp_path / words[1]).write_text(command.shown, encoding="utf-8")
            if words[0] != "attnsim" or tuple(words) in seen:
                continue
            seen.add(tuple(words))
            assert words[1] in COMMANDS, command.line
            if not command.is_run:  # that it exists is all that can be asked of it here
                assert main([words[1], "--help"]) == 0, command.line
                capsys.readouterr()
                continue
            code = main(words[1:])
            captured = capsys.readouterr()
            assert code == 0, f"{command.line}\n{captured.err}"
            assert command.cut(captured.out + captured.err).rstrip() == command.shown.rstrip(), (
                f"{command.line}: make outputs"
            )


@pytest.mark.parametrize("name", DOCUMENTS)
def test_outputs_that_nobody_compares_have_their_date(name: str) -> None:
    for language, content in blocks(DOCUMENTS[name]):
        for command in commands(content) if language == "console" else []:
            assert not command.is_slow or DATE.search(command.line), command.line


@pytest.mark.parametrize("name", DOCUMENTS)
def test_python_examples_print_what_is_shown(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {}
    text, end, printed = DOCUMENTS[name], 0, ""
    for match in FENCE.finditer(text):
        if match[1] == "text" and printed and not text[end : match.start()].strip():
            assert match[2] == printed, f"{name}: make outputs"
        end, printed = match.end(), ""
        if match[1] == "python":
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                exec(compile(match[2], name, "exec"), namespace)
            printed = "".join(f"{line.rstrip()}\n" for line in out.getvalue().splitlines())


@pytest.mark.parametrize("name", DOCUMENTS)
def test_gpu_files_load_and_meet_the_schema(name: str, tmp_path: Path) -> None:
    schema = json.loads(resources.files("attnsim.models.hardware").joinpath("gpu.schema.json").read_text("utf-8"))
    for path in write_files(DOCUMENTS[name], tmp_path):
        jsonschema.validate(yaml.safe_load(path.read_text(encoding="utf-8")), schema)
        assert load_gpu(str(path)).id == path.stem


@pytest.mark.parametrize("name", sorted(EVERYTHING))
def test_links_lead_somewhere(name: str) -> None:
    place = documents()[0].parent / name
    for target in re.findall(r"\]\(([^)\s]+)\)", _prose(place)):
        if target.startswith(("https://", "mailto:", "../_generated/", "_generated/")):  # the last: made with the site
            continue
        file, _, anchor = target.partition("#")
        there = (place.parent / file).resolve() if file else place
        assert there.exists(), f"{name}: {target}"
        if anchor:
            assert anchor in _anchors(there), f"{name}: {target}"


@pytest.mark.parametrize("name", DOCUMENTS)
def test_paths_that_are_named_exist(name: str) -> None:
    root = documents()[0].parent
    below = "attnsim|benchmarks|docs|examples|notebooks|tests|api|kernels|models|simulator|studies|validation"
    for found in re.findall(rf"`((?:{below})/[\w./-]+)`", _prose(root / name)):
        if "NAME" not in found and found != "attnsim/measured/GPU":  # the latter in the user's cache folder
            assert (root / found).exists() or (root / "attnsim" / found).exists(), f"{name}: {found}"


@pytest.mark.parametrize(("name", "limit"), [("README.md", 7_000), ("CONTRIBUTING.md", 6_000)])
def test_the_front_door_is_short(name: str, limit: int) -> None:
    assert len(DOCUMENTS[name]) <= limit


@pytest.mark.parametrize("name", [name for name in DOCUMENTS if name.startswith("docs/design/")])
def test_a_design_page_is_read_at_one_sitting(name: str) -> None:
    assert len(DOCUMENTS[name]) <= 15_000


def test_every_design_page_is_in_the_index() -> None:
    folder = documents()[0].parent / "docs/design"
    tree = re.search(r"```\{toctree\}\n:maxdepth: 1\n\n(.*?)```", DOCUMENTS["docs/design/index.md"], re.DOTALL)
    pages = sorted(path.stem for path in folder.glob("*.md") if path.stem != "index")
    assert tree and sorted(tree[1].split()) == pages
    assert {f"{page}.md" for page in pages} <= set(re.findall(r"\]\(([^)#]+)\)", DOCUMENTS["docs/design/index.md"]))


def test_a_release_is_told_shortly() -> None:
    unreleased, *releases = CHANGELOG.split("\n## [")[1:]
    assert unreleased.startswith("Unreleased]")
    assert releases
    for release in releases:
        assert re.match(r"\d+\.\d+\.\d+\] - \d{4}-\d\d-\d\d\n", release)
        lines = release.rstrip().splitlines()
        assert len(lines) <= 120
        assert max(map(len, lines)) <= 140


def test_the_version_that_is_cited_is_the_newest_release() -> None:
    cited = yaml.safe_load((documents()[0].parent / "CITATION.cff").read_text(encoding="utf-8"))
    version, date = re.findall(r"^## \[([\d.]+)\] - (\S+)$", CHANGELOG, re.MULTILINE)[0]
    assert (version, date) == (str(cited["version"]), str(cited["date-released"]))


@pytest.mark.parametrize(
    ("name", "table"),
    [("README.md", "summary"), ("docs/accuracy.md", "accuracy"), ("docs/hypothetical.md", "hypothetical")],
)
def test_generated_tables_have_their_places(name: str, table: str) -> None:
    assert DOCUMENTS[name].index(f"<!-- {table}:begin -->") < DOCUMENTS[name].index(f"<!-- {table}:end -->")


def _prose(path: Path) -> str:
    return re.sub(r"^```.*?^```$", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def _anchors(path: Path) -> set[str]:
    """Anchors of a document's headings, as the usual renderers make them."""
    headings = re.findall(r"^#+ (.+)$", _prose(path), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}
