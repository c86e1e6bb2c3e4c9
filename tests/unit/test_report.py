"""`attnsim report`: the study file, what the page says, and that nothing in a study becomes markup."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from attnsim.api import predict
from attnsim.cli import main
from attnsim.errors import InputError
from attnsim.models.calibrations.choose import choose
from attnsim.models.implementations.choose import find_implementation
from attnsim.plots.document import (
    Bullets,
    Code,
    Details,
    Document,
    Image,
    Paragraph,
    Picture,
    Section,
    clean,
    html_text,
    markdown_text,
    pictures_of,
)
from attnsim.plots.series import names_of
from attnsim.reports.answers import Report, answer, steps
from attnsim.reports.asking import MOST_POINTS, MOST_WORKLOADS, cases, read_report_study
from attnsim.reports.evidence import applying, figure_lines, files_used, uses
from attnsim.reports.headline import answer_table, changes, headline, short_answer
from attnsim.reports.page import Drawn, document_of, draw, parts, write_document
from attnsim.tables import Table
from attnsim.wording import interval_text, ratio_text, time_text, times_text
from tests.unit.answering import refusal

if TYPE_CHECKING:
    from playwright.sync_api import Browser
    from playwright.sync_api import Page as Tab

STUDY = """\
title: A small question
question: Is twice the HBM bandwidth worth having?
gpu: h100-sxm5-80gb
change: {hbm.bandwidth: 2x}
algorithm: [naive, flash]
workload: {batch: 1, heads_q: 2, seq_q: 256, head_dim: 64, mask: causal}
"""
SMALL = STUDY.replace("algorithm: [naive, flash]", "algorithm: naive").replace("change: {hbm.bandwidth: 2x}\n", "")
PNG = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + (300).to_bytes(4) + (200).to_bytes(4)


def study_file(folder: Path, text: str, name: str = "study.yaml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    asked = read_report_study(study_file(tmp_path_factory.mktemp("study"), STUDY))
    told: list[None] = []
    found = answer(asked, lambda: told.append(None))
    assert len(told) == steps(asked)
    return found


@pytest.fixture(scope="module")
def drawn(report: Report) -> Drawn:
    return draw(report)


@pytest.fixture(scope="module")
def page(report: Report, drawn: Drawn) -> str:
    return html_text(document_of(report, drawn))


class Tags(HTMLParser):
    """Every tag with its attributes, and the text of the page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.data: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))

    def handle_comment(self, data: str) -> None:
        self.tags.append(("comment", {}))

    def handle_data(self, data: str) -> None:
        self.data.append(data)

    def all(self, *names: str) -> Iterator[dict[str, str]]:
        return (attributes for tag, attributes in self.tags if tag in names)


# The study.


def test_a_changed_gpu_is_set_beside_the_unchanged_one_on_shipped_and_best_tiles(
    report: Report, tmp_path: Path
) -> None:
    (case,) = report.cases
    asked = [(one.algorithm, bool(one.changes), one.tile) for one in case.case.questions]
    assert len(cases(read_report_study(study_file(tmp_path, SMALL)))[0].questions) == 1
    assert asked == [
        (name, changed, tile)
        for changed in (False, True)
        for name in ("naive", "flash")
        for tile in ("shipped", "retuned")
    ]
    assert not any(one.question.tile == "retuned" for one in case.answers if one.question.algorithm == "naive")
    assert [one.number for one in case.answers] == list(range(1, 1 + len(case.answers)))


def test_a_study_that_names_tiles_gets_those_alone(tmp_path: Path) -> None:
    path = study_file(tmp_path, STUDY.replace("algorithm: [naive, flash]", "algorithm: flash\ntile: 64x64"))
    (case,) = cases(read_report_study(path))
    assert {one.tile for one in case.questions} == {"64x64"}


def test_a_change_that_changes_nothing_is_not_asked_twice(tmp_path: Path) -> None:
    path = study_file(tmp_path, STUDY.replace("2x", "[1x, 0.5x]"))
    (case,) = cases(read_report_study(path))
    assert (
        len(case.questions) == 8 and len({(str(one.changes), one.algorithm, one.tile) for one in case.questions}) == 8
    )


def test_shapes_name_their_cases(tmp_path: Path) -> None:
    text = SMALL.replace("batch: 1, ", "batch: 1, shape: {one: {dtype: fp16}, two: {dtype: bf16}}, ")
    one, two = cases(read_report_study(study_file(tmp_path, text)))
    assert one.label.startswith("one: batch 1") and two.label.startswith("two: batch 1")
    assert (one.workload.dtype, two.workload.dtype) == ("fp16", "bf16")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("question: [a]\n" + SMALL.replace("question: Is", "#"), "question is ['a']; write a text"),
        (SMALL + f"date: {'x' * 101}\n", "date has 101 letters; allowed: 100"),
        (SMALL + "pictures: [rofline]\n", "pictures names 'rofline'; nearest: roofline"),
        (SMALL + "pictures: {a: 1}\n", "pictures is {'a': 1}; write a list"),
        (SMALL + "colour: red\n", "unknown key 'colour'"),
        (SMALL.replace("batch: 1", f"batch: {{from: 1, to: {MOST_POINTS + 1}, steps: {MOST_POINTS + 1}}}"),
         f"the study has {MOST_POINTS + 1} points; a report holds {MOST_POINTS}"),
        (SMALL.replace("batch: 1", f"batch: {list(range(1, MOST_WORKLOADS + 2))}"),
         f"the study has {MOST_WORKLOADS + 1} workloads; a report holds {MOST_WORKLOADS}"),
        (SMALL.replace("heads_q: 2", "heads_q: 3, heads_kv: 2"), "heads_kv is 2; it must divide"),
        (SMALL.replace("dtype", "x").replace("head_dim: 64", "head_dim: 64, dtype: fp8, pass: bwd"), "has no fp8"),
        ("- a\n", "write keys such as"),
        ("title: 'a\n", "line"),
    ],
)  # fmt: skip
def test_bad_studies_are_one_line(text: str, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, out = study_file(tmp_path, text), tmp_path / "report.html"
    said = refusal(capsys, "report", str(path), "--out", str(out))
    assert told in said and "study.yaml" in said
    assert not out.exists()


def test_a_study_of_which_no_point_can_be_answered_is_refused(tmp_path: Path) -> None:
    text = SMALL.replace("h100-sxm5-80gb", "a100-sxm4-80gb").replace("head_dim: 64", "head_dim: 64, dtype: fp8")
    with pytest.raises(InputError, match=r"none of the points can be answered; the first: .*fp8"):
        answer(read_report_study(study_file(tmp_path, text)))


# What it says.


def test_the_short_answer_has_the_numbers_of_the_predictions(report: Report) -> None:
    (case,) = report.cases
    w = case.case.workload
    naive, flash = (predict(w, "h100-sxm5-80gb", name) for name in ("naive", "flash"))
    assert naive.time_s and flash.time_s
    first, second = short_answer(case)
    assert f"flash ({flash.implementation}) takes {time_text(flash.time_s)}" in first
    assert f"(90 % range {interval_text(flash.time_low_s, flash.time_high_s, flash.time_s)})" in first
    assert f"{flash.speedup_over(naive)} as fast as naive ({time_text(naive.time_s)})" in first
    assert f"Trust: {flash.trust.level}, {flash.trust.reasons[0]}." in first
    changed = predict(w, case.machines[1], "flash")
    assert changed.time_s and second.startswith("On h100-sxm5-80gb* flash takes")
    assert f"{times_text(flash.time_s / changed.time_s)} as fast as the unchanged GPU" in second


def test_the_headline_says_how_many_times_as_fast_with_its_range_and_what_was_changed(
    report: Report, tmp_path: Path
) -> None:
    (case,) = report.cases
    (gain,) = case.gains
    before, after = gain.before.prediction, gain.after.prediction
    assert before and after and gain.ratio == after.speedup_over(before)
    assert (before.changes, before.implementation, before.tiles) == ((), after.implementation, after.tiles)
    (line,) = headline(report)
    ends = ratio_text(gain.ratio.value, gain.ratio.low, gain.ratio.high).replace("(", "(90 % range ")
    assert line == f"Speedup of flash on h100-sxm5-80gb* over h100-sxm5-80gb: {ends}."
    assert changes(report) == ["h100-sxm5-80gb*: hbm.bandwidth = 6.7 TB/s (was 3.35 TB/s)"]
    larger = STUDY.replace("heads_q: 2, seq_q: 256, head_dim: 64", "heads_q: 32, seq_q: 4096, head_dim: 128")
    larger = larger.replace("hbm.bandwidth: 2x", "tensor.bf16: [2x, 0.5x]") + "pictures: []\n"
    several = answer(read_report_study(study_file(tmp_path, larger)))
    faster, slower = headline(several)
    assert " h100-sxm5-80gb A " in faster and faster.endswith(" from the tensor cores.")
    assert [line.partition(": ")[0] for line in changes(several)] == ["h100-sxm5-80gb A", "h100-sxm5-80gb B"]
    (last,) = several.cases
    unchanged, _, other = (one for one in last.predictions if one.algorithm == "flash" and one.tiles == "shipped")
    assert names_of([unchanged, other], last.marked) == ["flash", "flash B"], "a picture of some has the letters of all"
    assert " h100-sxm5-80gb B " in slower and slower.endswith(" from the tensor cores.") and ": 0." in slower


def test_the_headline_compares_gpus_that_exist_or_algorithms_of_one(tmp_path: Path) -> None:
    alone = STUDY.replace("change: {hbm.bandwidth: 2x}\n", "") + "pictures: []\n"
    two = alone.replace("h100-sxm5-80gb", "[a100-sxm4-80gb, h100-sxm5-80gb]")
    (line,) = headline(answer(read_report_study(study_file(tmp_path, two))))
    assert line.startswith("Speedup of flash on h100-sxm5-80gb over a100-sxm4-80gb: ")
    several = alone.replace("batch: 1", "batch: [1, 2]")
    first, second = headline(answer(read_report_study(study_file(tmp_path, several))))
    assert first.startswith("batch 1, flash on h100-sxm5-80gb: ") and second.startswith("batch 2, flash on h100")
    assert first.endswith("as fast as naive.")


def test_one_table_has_every_call_on_every_gpu(report: Report) -> None:
    table = answer_table(report)
    assert [(row["call"], row["GPU"]) for row in table.rows] == [
        (name, gpu) for name in ("naive", "flash") for gpu in ("h100-sxm5-80gb", "h100-sxm5-80gb*")
    ]
    (case,) = report.cases
    for cells in table.rows:
        named = {(one.question.algorithm, case.names[one.gpu]): one for one in case.answers
                 if one.gpu and one.question.tile == "shipped"}  # fmt: skip
        one = named[str(cells["call"]), str(cells["GPU"])].prediction
        assert one is not None
        assert cells["time"] == time_text(one.time_s) and cells["trust"] == one.trust.level
        assert cells["90 % range"] == interval_text(one.time_low_s, one.time_high_s, one.time_s)
        assert (cells["speedup"] == "-") == (not one.changes)
        assert (cells["over the first"] == "-") == (one.algorithm == "naive")


def test_the_page_begins_with_the_answer_and_says_a_change_once(report: Report, drawn: Drawn) -> None:
    document = document_of(report, drawn)
    assert [one.ident for one in document.sections] == [
        "answer", "rooflines", "busy", "timelines", "words", "errors", "predictions", "bounds", "hardware", "again",
    ]  # fmt: skip
    question, line, changed = document.lead
    assert isinstance(question, Paragraph) and isinstance(line, Paragraph) and isinstance(changed, Bullets)
    assert (question.strong, line.strong) == (False, True)
    (table,) = document.sections[0].blocks
    assert table == answer_table(report)
    text = " ".join(" ".join(Tags(html_text(document)).data).split())
    assert text.count("hbm.bandwidth = 6.7 TB/s (was 3.35 TB/s)") == 3, "in the list, and under two pictures"


def test_pictures_show_the_machine_that_was_asked_about(report: Report, drawn: Drawn) -> None:
    (roofline,), (units,), (timeline,) = drawn["rooflines"], drawn["busy"], drawn["timelines"]
    assert "naive on h100-sxm5-80gb* takes " in units.alt
    assert "naive on h100-sxm5-80gb*: " in roofline.alt and "retuned" not in roofline.caption
    rows = [line.split(",") for line in units.table.decode().splitlines()]
    place = rows[0].index("changes")
    assert {bool(row[place]) for row in rows[1:]} == {False, True}
    panels = {line.split(",")[0].strip('"') for line in timeline.table.decode().splitlines()[1:]}
    named = [f"{one.question.algorithm}, {report.names[one.gpu]}" for one, _ in report.cases[0].traces if one.gpu]
    assert named == ["flash, h100-sxm5-80gb", "flash, h100-sxm5-80gb*"] and panels == {"flash"}
    assert all(name in timeline.alt for name in named)


def test_a_call_that_is_too_large_is_said_and_kept_out_of_the_pictures(tmp_path: Path) -> None:
    text = SMALL.replace("seq_q: 256", "seq_q: 524288").replace("algorithm: naive", "algorithm: [naive, linear]")
    found = answer(read_report_study(study_file(tmp_path, text.replace(", mask: causal", "") + "pictures: []\n")))
    (line,) = short_answer(found.cases[0])
    assert "naive: too large for the memory. linear computes something else than softmax attention." in line
    text = html_text(document_of(found, draw(found)))
    assert "too large" in text and "<img" not in text


def test_hardware_lists_what_differs_with_kind_and_source(report: Report) -> None:
    first, rest = figure_lines(report.machines)
    assert [(one.figure, one.value, one.kind) for one in first] == [
        ("hbm.bandwidth", "3.35 TB/s", "datasheet"),
        ("hbm.bandwidth", "6.7 TB/s", "assumed"),
    ]
    assert all(one.source for one in [*first, *rest])
    assert {one.gpus for one in rest} == {("h100-sxm5-80gb",)} and len(rest) > 30


def test_errors_are_those_of_the_calibrations_used(report: Report, page: str) -> None:
    found = uses(report.cases)
    for one in found:
        assert one.chosen == choose(find_implementation(one.prediction.implementation), one.gpu)
    held = next(one.chosen.calibration for one in found if one.prediction.algorithm == "flash")
    assert held and f"{100 * held.held_out.mean:.1f} %" in page and f"{100 * held.held_out.median:.1f} %" in page
    root = Path(str(__import__("attnsim").__file__)).parent / "models" / "calibrations"
    for name, digest in files_used(found).items():
        assert hashlib.sha256((root / name).read_bytes()).hexdigest() == digest and digest in page


def test_gaps_are_those_that_its_predictions_may_share(report: Report, tmp_path: Path) -> None:
    own = [one.id for one in applying(uses(report.cases))]
    assert own == ["fa3-h100-band", "fa3-h100-head_dim", "width-operations", "width-version"]
    older = STUDY.replace("h100-sxm5-80gb", "a100-sxm4-80gb") + "pictures: []\n"
    found = answer(read_report_study(study_file(tmp_path, older)), lambda: None)
    gaps = [one.name for one in applying(uses(found.cases))]
    assert any("flash-attn.2" in name for name in gaps) and not any("cuDNN" in name for name in gaps)
    assert [one["name"] for one in parts(found) if one["part"] == "gap"] == gaps


def test_the_same_study_gives_the_same_bytes(report: Report, drawn: Drawn, page: str) -> None:
    assert html_text(document_of(report, drawn)) == page
    timeline = drawn["timelines"][0]
    again = draw(replace(report, asked=replace(report.asked, pictures=("timeline",))))
    assert again["timelines"][0] == timeline and not again["rooflines"]


# The page.


def test_the_page_needs_no_other_file_and_no_script(page: str) -> None:
    tags = Tags(page)
    for name in ("src", "srcset", "href"):
        given_ = [attributes[name] for _, attributes in tags.tags if name in attributes]
        assert all(address.startswith(("data:image/png;base64,", "data:text/csv;base64,", "#")) for address in given_)
    assert not any(tag in ("script", "link", "iframe", "object") for tag, _ in tags.tags)
    assert not any(name.startswith("on") for _, attributes in tags.tags for name in attributes)
    policy = next(one["content"] for one in tags.all("meta") if one.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'")
    assert "url(" not in page and "@import" not in page


def test_headings_landmarks_tables_and_pictures_are_named(page: str) -> None:
    tags = Tags(page)
    levels = [int(tag[1]) for tag, _ in tags.tags if re.fullmatch("h[1-6]", tag)]
    assert levels.count(1) == 1 and levels[0] == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    assert next(tags.all("html"))["lang"] == "en"
    assert [tag for tag, _ in tags.tags if tag in ("header", "nav", "main", "footer")] == [
        "header", "nav", "main", "footer",
    ]  # fmt: skip
    names = [attributes["id"] for _, attributes in tags.tags if "id" in attributes]
    assert len(set(names)) == len(names)
    assert {one["href"][1:] for one in tags.all("a") if one["href"].startswith("#")} <= set(names)
    assert {one["aria-labelledby"] for _, one in tags.tags if "aria-labelledby" in one} <= set(names)
    tables = page.split("<table>")[1:]
    assert len(tables) > 5 and all(re.match(r'<caption id="table-\d+">[^<]+</caption>', table) for table in tables)
    assert all(one["scope"] in ("col", "row") for one in tags.all("th"))
    assert "<th></th>" not in page
    pictures = list(tags.all("img"))
    assert len(pictures) == 3 and all(len(one["alt"]) > 60 and int(one["width"]) > 500 for one in pictures)


HOSTILE = st.text(
    st.sampled_from("<>\"'&;=/\\`*_[](){}|#!~$@:-+.0123456789 \t\n\u202e\ud800\x00ab\u20ac" + "htpsw"), max_size=40
) | st.sampled_from(
    [
        "</title><script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "</style><!--", "]]>", "&lt;b&gt;",
        "[a](javascript:alert(1))", "![x](http://a/b.png)", "<http://a.b>", "http://a.b/c www.a.b", "a|b\\|c",
        "```\n~~~", "# one\n\n- two\n\n1. three", "\n\n    code", "--- \n===", "$x$ {ref}`y`", "**b** __c__ _d_ ~~e~~",
        "a\n\n| b |\n",
    ]
)  # fmt: skip


def written_with(text: str) -> Document:
    """A document with a text in every place that can hold one; none is empty there."""
    text = text if clean(text).split() else f"b{text}"
    picture = Picture("name", text, text, (Image(PNG),), b"a,b\n")
    table = Table(text, [{f"a{text}": text, "b": text}, {f"a{text}": "1", "b": "2"}], right=("b",))
    inner = (Paragraph(text), Bullets((text, "y", f"y{text}")), Code(text, "yaml"), table, picture)
    section = Section("one", text, (*inner, Details(text, (Paragraph("x"),))))
    return Document(text, (Paragraph(text),), (section,), text)


@settings(max_examples=25)
@given(HOSTILE)
def test_no_text_becomes_html(text: str) -> None:
    benign, found = Tags(html_text(written_with("b"))), Tags(html_text(written_with(text)))

    def shape(one: Tags) -> list[tuple[str, list[str]]]:
        return [(tag, sorted({*attributes} - {"class"})) for tag, attributes in one.tags]

    assert shape(found) == shape(benign)
    assert clean(text) in next(found.all("img"))["alt"]


def tokens(text: str) -> list[str]:
    kinds = []
    for token in MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(text):
        kinds.append(token.type)
        kinds += [child.type for child in token.children or () if child.type not in ("text", "text_special")]
    return kinds


@settings(max_examples=25)
@given(HOSTILE)
def test_no_text_becomes_markdown(text: str) -> None:
    kinds = tokens(markdown_text(written_with(text), "files"))
    assert kinds == tokens(markdown_text(written_with("b"), "files"))
    assert not {"html_inline", "html_block"} & set(kinds)


def test_github_links_no_address_of_a_text() -> None:
    text = markdown_text(written_with("see http://a.b, www.c.d, https://e.f and me@g.h"), "files")
    outside = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    assert not re.search(r"http:|https:|www\.|[^\\]@", outside)


def test_a_hostile_study_is_told_and_not_obeyed(tmp_path: Path, report: Report, drawn: Drawn, page: str) -> None:
    title = "</title><script>alert(1)</script>"
    text = STUDY.replace("A small question", f'"{title}"') + "# <img src=x onerror=alert(1)>\n"
    asked = read_report_study(study_file(tmp_path, text, "a b;$(x)<i>.yaml"))
    found = html_text(document_of(replace(report, asked=asked), drawn, "x;y.html"))
    assert [tag for tag, _ in Tags(found).tags] == [tag for tag, _ in Tags(page).tags]
    assert "attnsim report &#x27;a b;$(x)&lt;i&gt;.yaml&#x27; --out &#x27;x;y.html&#x27;" in found


# Files.


def test_markdown_has_its_pictures_beside_it(tmp_path: Path, report: Report, drawn: Drawn) -> None:
    document = document_of(report, drawn, "report.md")
    (tmp_path / "report_files").mkdir()
    (tmp_path / "report_files" / "mine.txt").write_text("kept")
    written = write_document(document, tmp_path / "report.md")
    text = (tmp_path / "report.md").read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)#]+)\)", text)
    assert len(links) == 2 * len(pictures_of(document.sections)) == len(written) - 1
    assert all((tmp_path / link).stat().st_size > 100 for link in links)
    assert (tmp_path / "report_files" / "mine.txt").read_text() == "kept"
    assert {path.name for path in tmp_path.iterdir()} == {"report.md", "report_files"}


def test_nothing_half_written_stays(tmp_path: Path, report: Report, drawn: Drawn) -> None:
    document = document_of(report, drawn)
    (tmp_path / "taken_files").write_text("a file where the folder should be")
    (tmp_path / "folder.md").mkdir()
    for out in (tmp_path / "taken.md", tmp_path / "missing" / "report.html", tmp_path / "folder.md"):
        with pytest.raises(InputError, match="cannot"):
            write_document(document, out)
    with pytest.raises(InputError, match=r"end the name with \.html, \.htm, \.md"):
        write_document(document, tmp_path / "report.pdf")
    assert {path.name for path in tmp_path.iterdir()} == {"taken_files", "folder.md"}


def test_the_command_writes_both_and_prints_the_parts(
    tmp_path: Path, report: Report, drawn: Drawn, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("attnsim.cli.report.answer", lambda asked, told: replace(report, asked=asked))
    monkeypatch.setattr("attnsim.cli.report.draw", lambda found, told: drawn)
    study, page, text = study_file(tmp_path, STUDY), tmp_path / "r.html", tmp_path / "r.md"
    assert main(["report", str(study), "--out", str(page), "--out", str(text), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    kinds = list(dict.fromkeys(one["part"] for one in found))
    assert kinds == [
        "question",
        "headline",
        "gpu",
        "figure",
        "answer",
        "prediction",
        "bound",
        "errors",
        "gap",
        "versions",
        "files",
    ]
    assert found[:-1] == json.loads(json.dumps(parts(report)))
    assert str(page) in found[-1]["written"] and page.is_file() and text.is_file()
    assert main(["report", str(study), "--out", str(page)]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "A small question" in told and "as fast as naive" in told and f"written: {page}" in told


@pytest.mark.parametrize("out", ["report.pdf", "missing/report.html"])
def test_an_impossible_out_is_refused_before_anything_is_answered(
    out: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    refusal(capsys, "report", str(tmp_path / "not read.yaml"), "--out", str(tmp_path / out))


# In a browser.

CONTRAST = """
(() => {
  const rgb = text => text.match(/[\\d.]+/g).slice(0, 3).map(Number);
  const light = colour => rgb(colour).map(v => v / 255)
    .map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const ground = node => {
    for (; node; node = node.parentElement) {
      const colour = getComputedStyle(node).backgroundColor;
      if (colour !== 'rgba(0, 0, 0, 0)') return colour;
    }
    return 'rgb(255, 255, 255)';
  };
  return [...document.querySelectorAll('h1,h2,h3,p,li,a,th,td,caption,figcaption,summary,code,footer')].map(node => {
    const [a, b] = [light(getComputedStyle(node).color), light(ground(node))].sort((x, y) => y - x);
    return (a + 0.05) / (b + 0.05);
  }).reduce((x, y) => Math.min(x, y));
})()
"""
"""Least contrast of text, by the formula of WCAG 2.2, 1.4.3."""


@pytest.fixture
def opened(page: str, chromium: Browser, tmp_path: Path) -> Iterator[Callable[..., Tab]]:
    """Opens the page, and sees at the end that the browser found nothing wrong with it and asked for nothing else."""
    path = tmp_path / "report.html"
    path.write_text(page, encoding="utf-8")
    said: list[str] = []
    asked: set[str] = set()

    def open_page(width: int = 1280, height: int = 900, *, dark: bool = False) -> Tab:
        tab = chromium.new_page(viewport={"width": width, "height": height}, color_scheme="dark" if dark else "light")
        tab.on("console", lambda message: said.append(message.text))
        tab.on("pageerror", lambda error: said.append(str(error)))
        tab.on("request", lambda request: asked.add(request.url))
        tab.goto(path.as_uri())
        return tab

    yield open_page
    assert not said
    assert {address for address in asked if not address.startswith("data:")} == {path.as_uri()}


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (360, True)])
def test_a_browser_shows_everything_and_says_nothing(opened: Callable[..., Tab], width: int, dark: bool) -> None:
    tab = opened(width, 800, dark=dark)
    decoded = "Promise.all([...document.images].map(i => i.decode().then(() => [i.naturalWidth, i.clientWidth])))"
    sizes = tab.evaluate(decoded)
    assert len(sizes) == 3 and all(natural > 300 and client > 200 for natural, client in sizes)
    assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert tab.evaluate(f"matchMedia('(prefers-color-scheme: dark)').matches === {str(dark).lower()}")
    assert tab.evaluate(CONTRAST) >= 4.5


def test_paper_gets_everything_and_nothing_beyond_its_edge(opened: Callable[..., Tab]) -> None:
    tab = opened(690, 1000, dark=True)  # A4 less its margins, at 96 dots an inch
    tab.emulate_media(media="print")
    assert tab.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert tab.evaluate("getComputedStyle(document.querySelector('nav')).display") == "none"
    assert tab.evaluate("[...document.querySelectorAll('details table')].every(table => table.checkVisibility())")
    assert tab.evaluate(
        "[...document.querySelectorAll('table,img,pre')].every(one => one.getBoundingClientRect().right < 691)"
    )
    assert not tab.evaluate("[...document.images].some(image => image.getBoundingClientRect().height > 480)")
    printed = tab.pdf(prefer_css_page_size=True)
    pages = len(re.findall(rb"/Type\s*/Page\b", printed))
    assert printed.startswith(b"%PDF") and 4 <= pages <= 12
