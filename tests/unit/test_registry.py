"""Every record of the registry is complete, says what its reference computes, and has an up-to-date page."""

import itertools
import json
import re
from contextlib import suppress
from dataclasses import replace
from importlib import resources

import numpy as np
import pytest

from attnsim.api.asking import ask, read_algorithm
from attnsim.api.playing import shipped
from attnsim.arrays import Floats
from attnsim.cli import main
from attnsim.errors import InputError
from attnsim.models import mechanisms
from attnsim.models.hardware.files import load_gpu
from attnsim.models.implementations.choose import IMPLEMENTATIONS, find_implementation
from attnsim.models.mask.mask import Mask
from attnsim.models.mechanisms import ALGORITHMS, MECHANISMS, Mechanism, find_mechanism, running
from attnsim.models.mechanisms.choosing import check_runs
from attnsim.models.question.selection import Selection
from attnsim.models.question.workload import Workload
from attnsim.models.references.softmax import attention
from benchmarks.mechanism_pages import GPUS, GROUPS, stale

SOURCE = re.compile(r"arXiv \d{4}\.\d{5}|/[\w./-]+|\.(py|cu|h|cpp)\b|(19|20)\d\d")
"""A paper by its number, code by its path, a report by its year."""

every = pytest.mark.parametrize("record", MECHANISMS.values(), ids=list(MECHANISMS))


SMALL = {
    False: Selection.parse("top 3x4, compress 4 step 2, window 8"),
    True: Selection.parse("top 3, index 2x8"),
}
"""Selections of blocks, and of single keys, from few keys."""


def small(record: Mechanism) -> Workload:
    """The example with few tokens and heads."""
    w = record.example
    heads_kv = min(w.heads_kv, 2)
    seq_q = min(w.seq_q, 40)
    return replace(
        w,
        batch=1,
        heads_q=heads_kv * (1 if w.latent else min(w.group, 3)),
        heads_kv=heads_kv,
        seq_q=seq_q,
        seq_kv=seq_q if w.seq_q == w.seq_kv else 56,
        selection=None if w.selection is None else SMALL[w.selection.block == 1],
        mask=Mask.parse("neighborhood 5x8 window 3x4") if record.name == "neighborhood" else w.mask,
    )


def tensors(w: Workload) -> tuple[Floats, Floats, Floats]:
    draw = np.random.default_rng(0).standard_normal
    return (
        draw((w.batch, w.heads_q, w.seq_q, w.head_dim)),
        draw((w.batch, w.heads_kv, w.seq_kv, w.head_dim)),
        draw((w.batch, w.heads_kv, w.seq_kv, w.head_dim_v)),
    )


@every
def test_a_record_says_what_when_and_from_where(record: Mechanism) -> None:
    assert MECHANISMS[record.name] is record
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", record.name)
    assert record.group in GROUPS
    page = record.page
    assert page.title[0].isupper()
    assert 15 <= len(page.summary) <= 110 and not page.summary.endswith(".") and "\n" not in page.summary
    assert len(page.definition) > 60 and "$" in page.definition and page.definition.count("$") % 2 == 0
    assert len(page.wins) > 120 and page.wins.rstrip().endswith(".")
    assert len(set(page.sources)) == len(page.sources) > 0
    for source in page.sources:
        assert SOURCE.search(source), source
    if record.mask:
        assert str(Mask.parse(record.mask))


def test_every_page_is_of_a_mechanism_and_a_number_does_not_change_it() -> None:
    folder = resources.files(mechanisms) / "pages"
    assert sorted(page.name for page in folder.iterdir()) == sorted(f"{name}.md" for name in MECHANISMS)
    assert find_mechanism("performer@64").page is MECHANISMS["performer"].page


@every
def test_a_record_names_implementations_that_run_it(record: Mechanism) -> None:
    assert set(record.shown_by) <= set(ALGORITHMS)
    assert record.implementations or not record.selectable
    for name in record.implementations:
        assert record.run_by(IMPLEMENTATIONS[name]), name


@every
def test_a_block_waits_for_whatever_it_loads(record: Mechanism) -> None:
    """A load that nobody waits for is of no step: the default mode can neither cut its loop nor charge its time."""
    w = record.question(record.example)
    for implementation, gpu in itertools.product(map(find_implementation, record.implementations), map(load_gpu, GPUS)):
        with suppress(InputError):  # not of this GPU
            check_runs(implementation, w, gpu)
            for kernel in shipped(implementation, w, gpu).kernels:
                ops = kernel.steps[0]
                loaded, waited = ({op.tensor for op in ops if op.kind == kind} for kind in ("load", "wait"))
                assert loaded <= waited, (implementation.name, kernel.name)


@every
def test_some_gpu_runs_the_example(record: Mechanism) -> None:
    able = []
    for name in GPUS:
        gpu = load_gpu(name)
        try:
            implementation = ask(record.example, gpu, record).record
        except InputError:
            continue
        able.append(implementation.build(record.example, gpu, None))
    assert able
    assert all(schedule.kernels and schedule.tile for schedule in able)


@every
def test_the_reference_is_softmax_attention_unless_the_record_says_otherwise(record: Mechanism) -> None:
    w = small(record)
    q, k, v = tensors(w)
    o = record.reference(w, q, k, v)
    assert o.dtype == np.float64 and o.shape == (*q.shape[:3], w.head_dim_v)
    assert np.isfinite(o).all()
    softmax = attention(q, k, v, w.mask)[0]
    same = np.allclose(o, softmax, rtol=1e-11, atol=1e-12)
    assert same == record.exact


@every
def test_the_reference_keeps_to_the_mask(record: Mechanism) -> None:
    """Values of keys that no query sees change nothing; an approximation may mix all keys where it has no mask."""
    w = small(record)
    seen = w.mask.seen(np.arange(w.seq_q)[:, None], np.arange(w.seq_kv)[None, :], w.seq_q, w.seq_kv)
    q, k, v = tensors(w)
    o = record.reference(w, q, k, v)
    if record.exact and not seen[0].all():
        hidden = v.copy()
        hidden[:, :, ~seen[0]] += 1e6
        np.testing.assert_allclose(record.reference(w, q, k, hidden)[:, :, 0], o[:, :, 0], rtol=1e-9, atol=1e-9)
    if w.mask.is_causal and w.seq_q == w.seq_kv and w.seq_q > 1:
        later = v.copy()
        later[:, :, -1] += 1e6
        np.testing.assert_allclose(record.reference(w, q, k, later)[:, :, :-1], o[:, :, :-1], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("record", [item for item in MECHANISMS.values() if item.gradients], ids=lambda item: item.name)
def test_gradients_are_the_derivative_of_the_reference(record: Mechanism) -> None:
    """Along one random direction, by central differences."""
    assert record.gradients is not None
    w = small(record)
    inputs = tensors(w)
    draw = np.random.default_rng(1).standard_normal
    do = draw((*inputs[0].shape[:3], w.head_dim_v))
    directions = [draw(x.shape) for x in inputs]
    gradients = record.gradients(w, *inputs, do)
    slope = sum(float((g * x).sum()) for g, x in zip(gradients, directions, strict=True))
    step = 1e-6
    ends = [
        float(
            (
                record.reference(w, *(x + sign * step * along for x, along in zip(inputs, directions, strict=True)))
                * do
            ).sum()
        )
        for sign in (1, -1)
    ]
    assert (ends[0] - ends[1]) / (2 * step) == pytest.approx(slope, rel=1e-6)


def test_names_are_unique_and_algorithms_are_those_to_ask_for() -> None:
    titles = [item.page.title for item in MECHANISMS.values()]
    assert len(set(titles)) == len(titles)
    assert {name for name, item in MECHANISMS.items() if item.selectable} == set(ALGORITHMS)
    assert {"naive", "flash", "flash-1", "flash-2", "flash-3", "sliding-window", "split-kv"} <= set(ALGORITHMS)
    assert {"backward", "fp8", "unfused-passes"} <= set(MECHANISMS) - set(ALGORITHMS)


def test_every_implementation_runs_some_mechanism() -> None:
    for record in IMPLEMENTATIONS.values():
        assert running(record) and record.runs in MECHANISMS


def test_a_property_of_the_question_is_not_an_algorithm() -> None:
    with pytest.raises(InputError, match="'backward' is a property of the question, not a schedule"):
        read_algorithm("backward")


def test_the_command_lists_every_mechanism_in_its_group(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["algorithms"]) == 0
    text = capsys.readouterr().out
    names = [line.split()[0] for line in text.splitlines() if line and not line.startswith(" ")]
    assert set(MECHANISMS) <= set(names)
    assert [names.index(name) for name in ("naive", "sparse", "linear")] == sorted(
        names.index(name) for name in ("naive", "sparse", "linear")
    )
    assert main(["algorithms", "--json"]) == 0
    found = {item["algorithm"]: item for item in json.loads(capsys.readouterr().out)}
    assert set(found) == set(MECHANISMS)
    for name, item in found.items():
        record = MECHANISMS[name]
        assert (item["group"], item["selectable"], item["exact"]) == (record.group, record.selectable, record.exact)
        assert item["definition"] == record.page.definition and item["wins"] == record.page.wins and item["sources"]
        runs = [implementation["implementation"] for implementation in item["implementations"]]
        assert set(record.implementations) <= set(runs)


def test_pages_are_up_to_date() -> None:
    """`python benchmarks/mechanism_pages.py` writes them anew."""
    assert stale() == []
