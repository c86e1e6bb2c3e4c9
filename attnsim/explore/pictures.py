"""Tables of the pictures of the page: those of the commands' own pictures, and those that commands print."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from typing import Any

from attnsim.api.answer import Outcome
from attnsim.api.answering import compare
from attnsim.api.asking import read_conditions
from attnsim.api.comparing.densities import densities
from attnsim.api.comparing.splitting import split as shared_out
from attnsim.api.explaining import Explanation, explain
from attnsim.api.layer import layer
from attnsim.api.layer_answer import LayerPart
from attnsim.api.step import step
from attnsim.api.tracing import traces
from attnsim.errors import InputError, nearest, shown
from attnsim.explore.answers import kernels
from attnsim.explore.state import DEFAULTS, FIGURES, State
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.choose import IMPLEMENTATIONS, match
from attnsim.models.mechanisms import running
from attnsim.models.question.lengths import read_lengths
from attnsim.plots.changes import split
from attnsim.plots.density import density
from attnsim.plots.roofline import roofline
from attnsim.plots.scaling import scaling
from attnsim.plots.sheet import Picture
from attnsim.plots.styles import STEPS
from attnsim.plots.timeline import timeline_of
from attnsim.plots.units import units
from attnsim.reports.explanations import anew_sentences, bound_sentences
from attnsim.reports.search import front
from attnsim.studies.hardware_case import described
from attnsim.studies.hardware_search import search_hardware
from attnsim.studies.hardware_space import Space
from attnsim.wording import share_text, time_text, times_text

Rows = Sequence[Mapping[str, Any]]

LENGTHS = tuple(2**place for place in range(9, 18))
"""512 to 131,072: the lengths of a curve."""
OF_DENSITIES = {"model", "batch", "heads", "kv_heads", "seq", "head_dim", "tp", "dtype", "causal", "mask", "passes"}
"""Flags of a question over whose density there is a curve."""
OF_LAYERS = {"model", "batch", "seq", "seq_kv", "tp", "dtype", "passes"}
"""Flags of a question whose layer there is."""
OF_STEPS = {"model", "lengths", "batch", "tp", "dtype", "passes"}
"""Flags of a question of several lengths that a step has."""
SHIPPED = "Pictures are of shipped tiles; only the sentence above knows others."
VARIED = "1x:2x:0.25x"
"""Values of a figure of the budget."""


@dataclass(frozen=True)
class Shown:
    """A picture of the page.

    Parameters
    ----------
    title, alt : str
        What is shown, and the same in a sentence.
    columns : sequence of str
    rows, base : sequence of mapping
        Of the GPU as it is turned, and beside it as it is; empty where nothing is turned.
    picture : Picture or None
        The command's own; None where the command has none.
    more : mapping
        What is no table.
    note : str
        What of the state is not in the picture.
    """

    title: str
    alt: str
    columns: Sequence[str]
    rows: Rows
    base: Rows = ()
    picture: Picture | None = None
    more: Mapping[str, object] = field(default_factory=dict)
    note: str = ""

    def to_dict(self) -> dict[str, object]:
        """Plain types."""
        found: dict[str, object] = {"title": self.title, "alt": self.alt, "columns": list(self.columns)}
        caption = " ".join(filter(None, (self.picture.caption if self.picture else "", self.note)))
        return found | {"caption": caption, "rows": list(self.rows), "base": list(self.base), **self.more}


def shown_as(name: str, state: State) -> Shown:
    """A picture by its name."""
    if name not in PICTURES:
        raise InputError(f"picture {shown(name)} is not known; {nearest(str(name), PICTURES)}")
    return _drawn(name, state)


@lru_cache(maxsize=32)
def _drawn(name: str, state: State) -> Shown:
    found = PICTURES[name](state)
    return found if state.get("tiles") == DEFAULTS["tiles"] else replace(found, note=SHIPPED)


def _of(picture: Picture, state: State, is_base: Callable[[Mapping[str, Any]], bool] | None = None) -> Shown:
    """A command's picture, its rows apart by whether they are of the GPU as it is."""
    before = is_base or (lambda row: not row.get("changes"))
    turned = bool(state.gpu.changes)
    rows = [row for row in picture.rows if not (turned and before(row))]
    base = [row for row in picture.rows if turned and before(row)]
    return Shown(picture.title, f"{picture.title}. {picture.subtitle}", picture.columns, rows, base, picture)


def _both(state: State, **other: int) -> list[Outcome]:
    """The question on the GPU as it is, and as it is turned, as ``attnsim plot`` asks it."""
    w = state.workload(**other)
    return [
        one
        for gpu in state.machines
        for one in compare(w, gpu, [state.algorithm], implementation=state.implementations, cache=state.cache)
    ]


def _roofline(state: State) -> Shown:
    return _of(roofline(_both(state), state.machines, levels=["hbm", "l2", "smem"]), state)


def _units(state: State) -> Shown:
    return _of(units(_both(state)), state)


def _split(state: State) -> Shown:
    one = _both(state)[-1]
    parts = shared_out(one.workload, state.gpu, one.algorithm, implementation=one.implementation, cache=state.cache)
    return _of(split([parts]), state)


def _curve(state: State) -> Shown:
    if state.get("vary") == "density":
        if state.flags["passes"] != "fwd" or not state.flags.keys() <= OF_DENSITIES:
            raise InputError("a curve over density is of prompts of one length, by self-attention; take --pass fwd")
        found = densities(state.question, state.machines, sparse=state.implementations)
        return _of(density(found), state)
    if state.get("vary") != "seq":
        raise InputError(f"vary is {shown(state.get('vary'))}; allowed: seq, density")
    if "lengths" in state.texts:
        raise InputError("a curve is over one length, and --lengths says those of each sequence; leave them out")
    return _of(scaling([one for length in LENGTHS for one in _both(state, seq=length)]), state)


def _timeline(state: State) -> Shown:
    found = [
        (gpu, *one)
        for gpu in state.machines
        for one in traces(
            state.question,
            gpu,
            [state.algorithm],
            implementation=state.implementations,
            conditions=read_conditions(cache=state.cache),
            sms=2,
        )
    ]
    picture = timeline_of(found, f"{state.title}{state.question}")
    return _of(picture, state, lambda row: not str(row["panel"]).endswith("*"))


def _explained(state: State, gpu: Gpu) -> Explanation:
    kernel = state.get("kernel") or None
    return explain(state.question, gpu, state.algorithm, implementation=kernel, cache=state.cache)


def _levers(state: State) -> Shown:
    found = [_explained(state, gpu) for gpu in reversed(state.machines)]
    rows, *base = [[*map(asdict, one.levers), *map(asdict, one.kernel_levers)] for one in found]
    columns = list(dict.fromkeys(name for row in rows for name in row))
    sentences = bound_sentences(found[0])
    more = {"sentences": [*sentences, *anew_sentences(found[0])], "next_lever": sentences[-1]}
    title = "The call with each figure of the GPU twice as good, and the kernel changed in one property"
    return Shown(title, sentences[-1], columns, rows, base[0] if base else (), more=more)


def _layer(state: State) -> Shown:
    """The layer of the model, or with lengths a step of it, as ``attnsim predict --layer`` answers."""
    if state.filled is None:
        raise InputError("a layer is of a model, and this is a shape of one's own; choose a model")
    f, machines = state.flags, list(reversed(state.machines))
    given = {name for name, value in f.items() if value not in (None, False)}
    if other := sorted(given - (OF_STEPS if "lengths" in given else OF_LAYERS)):
        raise InputError(f"{other[0]} does not go with a layer; leave it out")
    how: dict[str, Any] = {
        "cache": state.get("cache") or "cold",
        "dtype": f["dtype"],
        "tp": f.get("tp", 1),
        "algorithm": state.algorithm,
        "implementation": state.get("kernel") or None,
    }
    if "lengths" in given:
        lengths = read_lengths(f["lengths"], f["passes"] == "decode")
        steps = [step(f["model"], gpu, lengths, **how) for gpu in machines]
        parts, spans, shares = [one.parts for one in steps], [one.time_s for one in steps], steps[0].share("attention")
        ratio = times_text(spans[-1] / spans[0])
    else:
        how |= {"batch": f.get("batch", 1), "seq": f.get("seq", 0), "seq_kv": f.get("seq_kv"), "passes": f["passes"]}
        layers = [layer(state.filled.model, gpu, **how) for gpu in machines]
        parts = [tuple((1, part) for part in one.parts) for one in layers]
        spans = [one.time_s or 0.0 for one in layers]
        shares, ratio = layers[0].attention_share or 0.0, str(layers[0].speedup_over(layers[-1]))
    rows, *base = [[_part(number, part) for number, part in one] for one in parts]
    what = f"A {'step' if 'lengths' in given else 'layer'} of {state.filled.model.id} takes {time_text(spans[0])}"
    gain = f", {ratio} as fast as unchanged" if base else ""
    alt = f"{what}{gain}; attention is {share_text(shares)} of it."
    return Shown("The whole layer", alt, list(rows[0]), rows, base[0] if base else ())


def _part(number: int, part: LayerPart) -> dict[str, object]:
    """A part of a layer or a step, all its runs together."""
    times = {name: number * (getattr(part, name) or 0.0) for name in ("time_s", "time_low_s", "time_high_s")}
    return {"part": part.name, "group": STEPS[part.group][0], "times": number, **times, "busiest": part.busiest}


def _why(state: State) -> Shown:
    found = [_explained(state, gpu) for gpu in reversed(state.machines)]
    rows, *base = [[asdict(kernel) for kernel in one.kernels] for one in found]
    more = {
        "loop_nest": found[0].loop_nest,
        "kernels": rows,
        "tensors": [asdict(one) for one in found[0].tensors],
        "counts": [asdict(one) for one in found[0].counts],
    }
    first, *before = (f"ound by {one.bound.words}." for one in found)
    others = [line for line in bound_sentences(found[0]) if line != f"B{first}"]
    alt = " ".join((f"B{first}", *others, *(f"Unchanged, it is b{text}" for text in before)))
    return Shown("Why it takes that long", alt, list(rows[0]), rows, base[0] if base else (), more=more)


def compared_kernels(state: State) -> tuple[list[str], list[str]]:
    """Algorithms and implementations that the page compares: those named, or all that run the question."""
    if named := state.get("kernels"):
        records = [match(name.strip()).record for name in named.split(",")]
    else:
        records = [one for one in kernels(state.unturned) if one.calls]
    if not records:
        raise InputError("no kernel runs this question; take another GPU, number format or pass")
    return list(dict.fromkeys(running(one)[0].name for one in records)), [one.name for one in records]


def _compare(state: State) -> Shown:
    algorithms, names = compared_kernels(state)
    asked = [
        compare(state.question, gpu, algorithms, implementation=names, cache=state.cache)
        for gpu in reversed(state.machines)
    ]
    found = [list({(one.algorithm, one.implementation): one for one in each}.values()) for each in asked]  # each once
    rows, *base = [[_row(item) for item in one] for one in found]
    times = [(one.time_s, one.implementation) for one in found[0] if one.time_s]
    alt = f"Of {len(rows)} kernels {min(times)[1]} is fastest." if times else "No kernel fits the memory."
    return Shown("Whose kernel", alt, list(rows[0]), rows, base[0] if base else ())


def _row(one: Outcome) -> dict[str, object]:
    source = IMPLEMENTATIONS[one.implementation].source
    plain = one.row()
    names = ("algorithm", "implementation", "gpu", "changes", "time_s", "time_low_s", "time_high_s", "busiest", "trust",
             "tile", "fits")  # fmt: skip
    return {name: plain[name] for name in names} | {"code": source, "trust_summary": one.trust.summary}


def varied(state: State) -> list[str]:
    """Figures of the GPU that a budget may vary, as ``--vary`` takes them."""
    keys = [key.strip() for key in state.get("space").split(",")]
    for key in keys:
        if key not in FIGURES:
            raise InputError(f"space: {shown(key)} is not known; {nearest(key, FIGURES)}")
    return [f"{state.figures[key]}={VARIED}" for key in keys]


def limits(state: State) -> list[str]:
    """The limits of a budget, as ``--limit`` takes them."""
    return [one.strip() for one in state.get("limit").split(";") if one.strip()]


def _times(value: Any, base: float) -> str:
    return f"{value / base:.6g}x"


def _budget(state: State) -> Shown:
    base = state.base
    space = Space.read(base, varied(state), limits(state))
    objectives = [one.strip() for one in state.get("minimise").split(",")]
    found = search_hardware(
        state.cases, space, state.algorithm, implementation=state.get("kernel") or None, objectives=objectives
    )
    picture = front(found, "; ".join(described(case, state.title) for case in state.cases))
    paths = {path: key for key, path in state.figures.items()}
    rows = [
        {**row, "figures": {paths[one.key]: _times(row[one.key], base.get(one.key)) for one in space.ranges}}
        for row in picture.rows
    ]
    alt = f"{picture.title}: {len(found.front)} of {len(found.machines)} machines on the front."
    unchanged = [row for row in rows if row["unchanged"]]
    others = [row for row in rows if not row["unchanged"]]
    return Shown(picture.title, alt, picture.columns, others, unchanged, picture)


PICTURES: Mapping[str, Callable[[State], Shown]] = {
    "roofline": _roofline,
    "units": _units,
    "levers": _levers,
    "split": _split,
    "curve": _curve,
    "timeline": _timeline,
    "compare": _compare,
    "budget": _budget,
    "why": _why,
    "layer": _layer,
}
"""Every picture of the page by its name."""
