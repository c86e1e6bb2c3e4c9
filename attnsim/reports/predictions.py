"""Predictions for people: the question above, a table, and below how far to trust it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

from attnsim.api.answer import Outcome
from attnsim.api.cells import cells
from attnsim.api.comparing.baselines import UNCHANGED, UNFUSED, Ratios
from attnsim.api.comparing.levers import why
from attnsim.api.comparing.ratios import T
from attnsim.api.comparing.splitting import Split
from attnsim.errors import InputError
from attnsim.models.hardware.gpu import Change
from attnsim.models.mechanisms import MECHANISMS, find_mechanism, only_for
from attnsim.models.question.workload import Workload
from attnsim.tables import REMARKS, Block, Remarks, Table, folded
from attnsim.wording import (
    NOTHING,
    and_text,
    clock_text,
    number,
    spread_text,
    time_text,
)


def heading(question: Workload, shown: Collection[str] = ()) -> str:
    """The question in words, window and patterns apart because only some algorithms have them."""
    plain = question.without_window()
    return str(plain) if plain == question else f"{plain}; {_players(question, shown)}: {question.mask}"


def _players(question: Workload, shown: Collection[str]) -> str:
    """The shown algorithms that play the question's mask; the usual one where none is named."""
    return and_text([name for name in only_for(question) if name in shown] or only_for(question)[:1])


def check_window(question: Workload, names: Sequence[str], window: int | None) -> None:
    """Refuse a window for mechanisms that play a pattern of their own in its place."""
    patterned = [name for name in names if name in MECHANISMS and MECHANISMS[name].mask]
    if window and patterned and question.mask.is_band and question.mask.is_windowed:
        who = only_for(question)
        raise InputError(
            f"--window {window} is for {and_text(who)}, not for --algorithm {','.join(patterned)}; leave one out"
        )


def caption(question: Workload, over: Collection[str], shown: Collection[str] = (), retuned: bool = False) -> str:
    """A text on how to read the table's columns; its ratios are over what `over` names."""
    meant = {
        UNFUSED: "unfused attention (torch.baddbmm) on the same GPU",
        UNCHANGED: f"the unchanged GPU on {'tiles chosen in the same way' if retuned else 'shipped tiles'}",
    }
    text = "".join(f"vs {name}: speedup over {meant.get(name, name)}. " for name in dict.fromkeys(over))
    text += "90 % range in brackets. " if over else ""
    text += "TFLOP/s: useful FLOPs (visible pairs only) over the time."
    if question.latent is not None and not all(find_mechanism(name).reads_latent for name in shown):
        text += " Only mla reads the latent; the others attend K and V of every head, cached so."
    if only_for(question):
        who, what = _players(question, shown), "window" if question.mask.is_band else "patterns"
        text += f" Only {who} {'have' if ' and ' in who else 'has'} the {what}; the others see all keys"
        text += " up to the query." if question.mask.is_causal else "."
    return text


TEXTS = ("GPU", "algorithm", "busiest", "trust")
"""Columns that are no numbers."""


def predicted(
    title: str,
    predictions: Sequence[Outcome],
    over: Sequence[Ratios] = (),
    verbose: bool = False,
    refused: Mapping[str, str] = MappingProxyType({}),
) -> Table:
    """A table of predictions, one a line, with a column for each kind of ratios that any of them has.

    Names that are `refused` have a line without figures, and their reason below.
    """
    ratios = {f"vs {one.over}": one.ratios for one in over if any(one.ratios)}
    more = ("blocks\n/SM", "waves", "floor", "trust") if verbose else ()
    heads = ["algorithm", "time", "90 % range", *ratios, "HBM\nGB", "TFLOP/s", "busiest", *more]
    rows: list[dict[str, object]] = [
        {"algorithm": name, **{head: str(found[place] or NOTHING) for head, found in ratios.items()}}
        | cells(item, *(head for head in heads[1:] if head not in ratios))
        for place, (name, item) in enumerate(zip(_names(predictions), predictions, strict=True))
    ]
    rows += [{**dict.fromkeys(heads, NOTHING), "algorithm": name} for name in refused]
    reasons = [f"{reason if reason.startswith(name) else f'{name}: {reason}'}\n" for name, reason in refused.items()]
    ordered = [{head: row[head] for head in heads} for row in rows]
    return Table(title, ordered, [head for head in heads if head not in TEXTS], heads, remarks=reasons)


def why_fastest(predictions: Sequence[Outcome]) -> Iterator[str]:
    """The line on what bounds the fastest of a table, and which change would move the bound."""
    timed = [one for one in predictions if one.time_s is not None]
    if timed:
        yield f"{why(min(timed, key=lambda one: one.time_s or 0.0))}\n"


def trusted(predictions: Sequence[Outcome], verbose: bool = False, details: Iterable[str] = ()) -> Iterator[Block]:
    """How far to trust a table of predictions, and the `details` where `verbose` asks for them.

    What was found about the question itself, such as queries that see no key, is said always, and how far those that
    compute another function than softmax attention are from it.
    """
    names = _names(predictions)
    if not verbose:
        yield from _said([one.findings if one.fits else () for one in predictions], names)
    yield from _approximations(predictions, names)
    yield Remarks(_levels(predictions, names), (*_details(predictions, names), *details))


def _levels(predictions: Sequence[Outcome], names: Sequence[str]) -> str:
    """Level and range of each, or where that is too long for two lines, of all that share a level."""
    by_level: dict[str, dict[str, Outcome]] = {}
    runs: set[str] = set()
    for item, name in zip(
        predictions, _placed(predictions, names, [one.trust.level for one in predictions]), strict=True
    ):
        if item.time_s is not None:
            whose = name if item.implementation in runs or "/" in name else f"{name} ({item.implementation})"
            runs.add(item.implementation)
            tiles = "" if item.tiles == "shipped" else f" ({item.tiles})"
            by_level.setdefault(item.trust.level, {}).setdefault(f"{whose}{tiles}", item)
    hint = "-v says why"
    hint += ", and what is assumed." if any(_assumed(one) for one in predictions) else "."
    each = [
        f"{level}: {', '.join(f'{name} {spread_text(one.trust.low, one.trust.high)}' for name, one in mine.items())}"
        for level, mine in by_level.items()
    ]
    text = f"{'; '.join(each)}. {hint}"
    if len(folded(text).splitlines()) <= REMARKS:
        return text
    every = [
        f"{level}: {len(mine)} answer{'' if len(mine) == 1 else 's'} within {spread_text(min(low), max(high))}"
        for level, mine in by_level.items()
        for low, high in [zip(*((one.trust.low, one.trust.high) for one in mine.values()), strict=True)]
    ]
    return f"{'; '.join(every)}. {hint}"


def _assumed(item: Outcome) -> bool:
    return any(reason.kind == "assumed" for reason in item.trust.reasons)


def _details(predictions: Sequence[Outcome], names: Sequence[str]) -> list[str]:
    """Lines on kernels, tiles, clocks and notes, and every reason to trust a time so far."""
    lines: list[str] = []
    kernels = [f"{item.implementation}, tile {item.tile}" for item in predictions]
    placed = _placed(predictions, [item.algorithm for item in predictions], kernels)
    for item, kernel, name in zip(predictions, kernels, placed, strict=True):
        if item.tile:
            lines.append(f"{name}: {kernel}{'' if item.tiles == 'shipped' else f' ({item.tiles})'}")
    lines += _clocks(predictions, names)
    texts = [
        (*item.notes, *(f"trust: {one}" for one in item.trust.reasons if one.text not in item.notes))
        for item in predictions
    ]
    return [*lines, *_said(texts, names), *_reached(predictions, names)]


def _said(texts: Sequence[Sequence[str]], names: Sequence[str]) -> list[str]:
    """Each text once, with whom it is of where it is not of all."""
    about: dict[str, list[str]] = {}
    for mine, name in zip(texts, names, strict=True):
        for text in mine:
            about.setdefault(text, []).append(name)
    whose = {text: list(dict.fromkeys(named)) for text, named in about.items()}
    return [text if set(named) == set(names) else f"{text} ({', '.join(named)})" for text, named in whose.items()]


def _reached(predictions: Sequence[Outcome], names: Sequence[str]) -> list[str]:
    """The share of its floor that each reaches, and the best of the measured calls of its pass on that chip."""
    best = [(item, name) for item, name in zip(predictions, names, strict=True) if item.floor_s and item.best_share]
    shares = [f"{item.floor_s / item.time_s:.2f}" for item, _ in best if item.floor_s and item.time_s]
    placed = _placed([item for item, _ in best], [name for _, name in best], shares)
    said: dict[tuple[str, float | None], list[str]] = {}
    for (item, _), name, share in zip(best, placed, shares, strict=True):
        said.setdefault((f"{item.workload.passes} on {item.gpu}", item.best_share), []).append(f"{name} {share}")
    return [
        f"of its floor: {', '.join(each)}; measured calls of {where}: at most {share:.2f}"
        for (where, share), each in said.items()
    ]


def _approximations(predictions: Sequence[Outcome], names: Sequence[str]) -> list[str]:
    """One line on how far those that are not softmax attention are from it."""
    rough = {name: item.approximation for item, name in zip(predictions, names, strict=True) if item.approximation}
    if not rough:
        return []
    stated = next(iter(rough.values()))
    deviations = " / ".join(f"{one.score_deviation:g}" for one in stated)
    sizes = [f"{name} {' / '.join(number(100 * one.relative, 2) for one in found)} %" for name, found in rough.items()]
    return [
        f"error of O against softmax attention, untrained, on Gaussian inputs (N {stated[0].seq}, head_dim "
        f"{stated[0].head_dim}, scores of deviation {deviations}): {', '.join(sizes)}"
    ]


def _placed(predictions: Sequence[Outcome], names: Sequence[str], texts: Sequence[str]) -> list[str]:
    """Names with their GPU, where what is said of a name differs by GPU."""
    said: dict[str, set[str]] = {}
    for name, text in zip(names, texts, strict=True):
        said.setdefault(name, set()).add(text)
    if len({item.gpu for item in predictions}) == 1:
        return list(names)
    return [
        f"{name} on {item.gpu}" if len(said[name]) > 1 else name for item, name in zip(predictions, names, strict=True)
    ]


def _clocks(predictions: Sequence[Outcome], names: Sequence[str]) -> list[str]:
    """The line on SM clocks, in the order of the tables; of whom each is, where they differ."""
    known = [(item, name) for item, name in zip(predictions, names, strict=True) if item.clock_hz and item.clock_by]
    clocks = [clock_text(item.clock_hz or 0.0, item.clock_by or "") for item, _ in known]
    if len(set(clocks)) > 1:
        timed = _placed([item for item, _ in known], [name for _, name in known], clocks)
        gpus = [item.gpu for item, _ in known]
        if len(set(zip(gpus, clocks, strict=True))) == len(set(gpus)):  # each GPU has one
            timed = gpus
        elif len({item.changes for item, _ in known}) > 1:
            own = {item.gpu: item.changes for item, _ in reversed(known)}  # as its file or name has it: its first table
            timed = [f"{name} {_machine(item, own[item.gpu])}" for (item, _), name in zip(known, timed, strict=True)]
        clocks = [f"{name} {text}" for name, text in zip(timed, clocks, strict=True)]
    return [f"SM clock: {', '.join(dict.fromkeys(clocks))}"] if clocks else []


def _machine(item: Outcome, own: Sequence[Change]) -> str:
    """The table of a changed GPU that a prediction stands in; `own` is what its file changes."""
    if item.changes == own:
        return "unchanged"
    return "changed" if item.tiles == "shipped" else item.tiles


def _names(predictions: Sequence[Outcome]) -> list[str]:
    """A name for each prediction: its algorithm, and its implementation where a GPU shows several of that."""
    runs: dict[tuple[object, ...], set[str]] = {}
    keys = [(item.algorithm, item.gpu, item.changes) for item in predictions]
    for key, item in zip(keys, predictions, strict=True):
        runs.setdefault(key, set()).add(item.implementation)
    return [
        f"{item.algorithm}/{item.implementation}" if len(runs[key]) > 1 else item.algorithm
        for key, item in zip(keys, predictions, strict=True)
    ]


def of_call(one: Outcome) -> str:
    """A call whose gain was split, in words."""
    return f"{one.algorithm} ({one.implementation}) on {one.gpu}, {one.tiles} tiles"


def split_table(found: Split[T], what: str) -> Table:
    """A line for each change, and one for all together."""
    rows: list[dict[str, object]] = [
        {
            "figure": one.change.key,
            "mean over\norders": str(one.mean),
            "alone": time_text(one.alone.time_s),
            "speedup\nalone": str(one.first),
            "all\nwithout it": time_text(one.without.time_s),
            "speedup\nlast": str(one.last),
        }
        for one in found.parts
    ]
    whole: dict[str, object] = {
        "figure": "all together",
        "alone": time_text(found.changed.time_s),
        "all\nwithout it": time_text(found.unchanged.time_s),
        "mean over\norders": str(found.together),
    }
    rows.append(dict.fromkeys(rows[0], "") | whole)
    remark = "alone: on the unchanged GPU. last: after all others. The means multiply to the whole.\n"
    heading = f"{what}: what each change brings"
    return Table(heading, rows, right=rows[0].keys() - {"figure"}, whole=rows[0], remarks=[remark])
