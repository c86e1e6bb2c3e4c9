"""The answer to a state in one sentence, and what the controls of the page offer."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import attnsim
from attnsim.api.answer import Outcome
from attnsim.api.answering import answer
from attnsim.api.asking import ask, read_algorithm
from attnsim.api.comparing.baselines import UNFUSED, why_slower
from attnsim.api.playing import shipped
from attnsim.api.trust import assess
from attnsim.errors import InputError
from attnsim.explore.state import DEFAULTS, FIGURES, State
from attnsim.models.calibrations.choose import built, choose
from attnsim.models.hardware.files import known_gpu_ids, load_gpu
from attnsim.models.hardware.sections import FIELDS
from attnsim.models.hardware.units import UNITS, unit_text
from attnsim.models.implementations.choose import IMPLEMENTATIONS
from attnsim.models.implementations.implementation import Implementation
from attnsim.models.llm.files import builtin_model_ids, load_model
from attnsim.models.mechanisms import ALGORITHMS, running
from attnsim.models.question.workload import DTYPE_BYTES
from attnsim.plots import styles
from attnsim.plots.styles import STYLES
from attnsim.reports.explanations import timed_text
from attnsim.studies.folder import calibration

Answer = dict[str, object]

PASSES = {"prefill": "prefill", "decode": "decode", "training": "training (forward and backward)", "bwd": "backward"}
MASKS = {
    "": "as the model has it, or full",
    "full": "full",
    "causal": "causal",
    "causal, window 1024": "sliding window",
    "causal, window 512, global 16": "window and global",
    "causal, strided 512": "strided",
    "causal, block window 256x4": "blocks along the diagonal",
}
"""Masks that the control offers; any text of ``--mask`` may be typed."""
SLIDER = (0.25, 4.0)
"""Ends of a slider, as multiples; any value may be typed."""


@lru_cache(maxsize=256)
def _before(state: State) -> Outcome:
    """The prediction on the GPU as it is."""
    return answer(state.asks(state.base))


def predictions(state: State) -> tuple[Outcome, Outcome]:
    """On the GPU as it is, and as it is turned."""
    if not (state.algorithm and state.gpu.changes):  # read in the order of the command line
        one = _before(state.unturned)
        return one, one
    return _before(state.unturned), answer(state.asks(state.gpu))


def headline(state: State) -> Answer:
    """One sentence with its numbers: time and ratio with their ranges, what is busiest, how far to trust it."""
    base, found = predictions(state)
    ratio = found.speedup_over(base) if found.changes else None
    return {
        "sentence": _sentence(found, base),
        "time_s": _span(found),
        "base": _span(base),
        "ratio": ratio and ratio.to_dict(),
        "ghost": bool(found.changes),
        "turned": {key: _turned(state, path) for key, path in state.figures.items() if path in state.changes},
        "busiest": found.busiest and unit_text(found.busiest),
        "unit": found.busiest if found.busiest in UNITS else "",
        "level": found.trust.level,
        "trust": [found.trust.summary, *map(str, found.trust.reasons[1:])],
        "algorithm": found.algorithm,
        "kernel": found.implementation,
        "code": IMPLEMENTATIONS[found.implementation].source,
        "tile": found.tile,
        "question": str(found.workload),
        "notes": [*found.notes, *(str(one) for one in found.trust.reasons if one.kind == "assumed")],
        "stale": state.stale,
    }


def _turned(state: State, path: str) -> Answer:
    """A figure that is turned: as a multiple of the base's, and as it is written."""
    before, now = state.base.get(path), state.gpu.get(path)
    return {"multiple": now / before if before else None, "value": FIELDS[path].show(now)}


def _span(one: Outcome) -> dict[str, float | None]:
    return {"value": one.time_s, "low": one.time_low_s, "high": one.time_high_s}


def _sentence(found: Outcome, base: Outcome) -> str:
    settings = ", ".join(change.setting for change in found.changes)
    who = f"{found.algorithm} ({found.implementation}) on {found.gpu}{f' with {settings}' if settings else ''}"
    if not found.fits:
        return f"{who} {found.notes[0]}."
    text = f"{who} takes {timed_text(found)}"
    if found.changes:
        ratio = found.speedup_over(base)
        alike = " with retuned tiles too" if "retuned" in (base.tiles, found.tiles) else ""
        text += f", {ratio} as fast as unchanged{alike}" if ratio else "; unchanged it does not fit"
        slower = why_slower(base, found)
        text += f"; {slower}" if slower else ""
    return f"{text}; busiest: {unit_text(found.busiest)}."


def catalogue(state: State) -> Answer:
    """Options of the controls: GPUs, models, kernels that run the question, and the figures of the GPU.

    Raises
    ------
    InputError
        For a GPU that is not known.
    """
    return {
        "version": attnsim.__version__,
        "calibration": calibration(),
        "defaults": DEFAULTS,
        "gpus": [{"id": one, "label": load_gpu(one).name} for one in known_gpu_ids()],
        "models": [_model(one) for one in builtin_model_ids()],
        "passes": [{"id": one, "label": label} for one, label in PASSES.items()],
        "dtypes": list(DTYPE_BYTES),
        "masks": [{"id": one, "label": label} for one, label in MASKS.items()],
        "figures": [_figure(state, key) for key in FIGURES],
        "colours": {name: _colours(name) for name in ("light", "dark")},
        "names": {one.name: one.label for one in UNITS.values()},
        **_kernels(state),
    }


def _model(name: str) -> Answer:
    one = load_model(name)
    return {"id": name, "label": name, "heads": one.heads_q, "kv_heads": one.heads_kv, "head_dim": one.head_dim}


def _figure(state: State, key: str) -> Answer:
    label, _, unit = FIGURES[key]
    path, gpu = state.figures[key], state.base
    field, value, figure = FIELDS[path], gpu.get(path), gpu.provenance.get(path)
    low, high = (min(max(times * value, field.low), field.high) / value if value else 1.0 for times in SLIDER)
    return {
        "key": key,
        "path": path,
        "label": label,
        "value": field.show(value),
        "si": value,
        "unit": field.unit,
        "kind": figure.kind if figure else "derived",
        "source": figure.source if figure else "",
        "low": low,
        "high": high,
        "allowed": field.allowed(),
        "unit_of": unit,
    }


def _colours(name: str) -> Answer:
    look = STYLES[name]
    return {
        "page": look.page,
        "text": look.text,
        "faint": look.faint,
        "middle": look.middle,
        "grid": look.grid,
        "series": list(look.colours),
        "units": {unit: look.colour(styles.unit_hue(unit)) for unit in UNITS},
        "tensors": {tensor: look.colour(hue) for tensor, hue in styles.TENSORS.items()},
        "algorithms": {algorithm: look.colour(styles.algorithm_hue(algorithm)) for algorithm in ALGORITHMS},
        "steps": {name: look.colour(hue) for name, hue in styles.STEPS.values()},
    }


def _kernels(state: State) -> Answer:
    """The kernels that run the question; where it is none, what is wrong with it."""
    try:
        return {"kernels": [_kernel(state, one) for one in kernels(state.unturned)], "refused": ""}
    except InputError as error:
        return {"kernels": [], "refused": str(error)}


@lru_cache(maxsize=32)
def kernels(state: State) -> list[Implementation]:
    """The implementations that run the question as it is put, unfused ones among them."""
    usual = [read_algorithm(name) for name in dict.fromkeys((state.usual, UNFUSED))]
    found = [one for one in IMPLEMENTATIONS.values() if any(name.run_by(one) for name in usual)]
    return [one for one in found if _answers(lambda one=one: _runs(state, one))]  # type: ignore[misc]


def _runs(state: State, record: Implementation) -> None:
    """Refuse a kernel that does not run the question."""
    played = ask(state.question, state.base, running(record)[0], record.name).w
    if played.mask != state.question.mask:
        raise InputError(f"{record.name} would play {played.mask}")
    shipped(record, played, state.base)


def _answers(asking: Callable[[], object]) -> bool:
    try:
        asking()
    except InputError:
        return False
    return True


def _kernel(state: State, record: Implementation) -> Answer:
    w, gpu = state.question, state.base
    trust = assess(w, gpu, built(choose(record, gpu), record, w, gpu), record, version=record.version)
    return {
        "id": record.name,
        "label": record.name,
        "code": record.source,
        "runs": running(record)[0].name,
        "level": trust.level,
        "trust": trust.summary,
    }
