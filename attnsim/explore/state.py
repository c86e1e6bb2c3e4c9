"""The state in a page's address: a GPU, its turned figures, a question; read by the readers of the command line."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import attnsim
from attnsim.api.answering import compared
from attnsim.api.asking import Question, read_conditions
from attnsim.errors import InputError, Taken, nearest, shown
from attnsim.models.hardware.files import load_gpu
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.hardware.units import EXP, HBM, L2, SHARED_MEMORY, TENSOR
from attnsim.models.implementations.choose import match
from attnsim.models.llm import asked
from attnsim.models.mechanisms import only_for, playing, running
from attnsim.models.question.words import KERNEL_OPTIONS, read_count, read_dtype, read_pass
from attnsim.models.question.workload import DTYPE_BYTES, Workload
from attnsim.studies.folder import calibration
from attnsim.studies.hardware_case import Case, each_once, flag_of, is_file, pairs_of, weighted

FIGURES = {
    "hbm": ("HBM bandwidth", HBM.figure, HBM.name),
    "l2": ("L2 bandwidth", L2.figure, L2.name),
    "l2_size": ("L2 capacity", "l2.capacity", L2.name),
    "smem": ("shared memory bandwidth", SHARED_MEMORY.figure, SHARED_MEMORY.name),
    "smem_size": ("shared memory size", "sm.shared_memory", SHARED_MEMORY.name),
    "sms": ("SMs", "sm.count", ""),
    "clock": ("boost clock", "clock.boost", ""),
    "tensor": ("tensor cores", TENSOR.figure, TENSOR.name),
    "exp": ("exponentials", EXP.figure, EXP.name),
    "power": ("power limit", "power.limit", ""),
}
"""Sliders: the label, the figure of the GPU, and the unit that the figure belongs to."""

SHAPES = ("heads", "kv_heads", "head_dim", "head_dim_v")
COUNTS = ("batch", *SHAPES, "seq", "seq_kv", "page_size", "prefix", "tp", "window")
TEXTS = ("model", "lengths", "tree", "latent", "dtype", "pass", "operations", "selection", "mask", *KERNEL_OPTIONS)
BUDGET = ("space", "limit", "minimise", "case")
OTHERS = ("gpu", "algorithm", "kernel", "kernels", "tiles", "cache", "density", "vary", *BUDGET, "v", "cal")
QUESTION = (*COUNTS, *TEXTS, "causal")
KEYS = (*OTHERS, *FIGURES, *QUESTION)
DEFAULTS = {
    "gpu": "h100-sxm5-80gb",
    "model": "llama-3-70b",
    "tp": "8",
    "pass": "prefill",
    "batch": "1",
    "seq": "8192",
    "dtype": "bf16",
    "tiles": "shipped",
    "vary": "seq",
    "space": "l2,hbm,exp",
    "minimise": "time,area",
}
SHAPE = ("heads", "head_dim")
"""Keys that describe a shape of one's own, in place of a model."""
BLOCK = 64
"""Tokens of a block of the random pattern that a density asks for, as the command line draws densities."""
MOST = 2_000
"""Letters of a value."""
FILES = (".yaml", ".yml", ".json", ".csv", ".parquet")


def names_file(text: str) -> bool:
    """True if a value may be read as a file, however a path is written."""
    return any(part.strip().endswith(FILES) for part in text.lower().split("/"))


@dataclass(frozen=True)
class State:
    """A state, its values as text; what they mean is read where it is asked for.

    Parameters
    ----------
    given : tuple of (str, str)
        Key and value, in the order of `KEYS`; what is left out has its default.
    """

    given: tuple[tuple[str, str], ...]

    @cached_property
    def texts(self) -> dict[str, str]:
        """Every key that has a value, given or by default."""
        given = dict(self.given)
        unset = {"model", "tp"} if any(name in given for name in SHAPE) else set()
        unset |= {"seq"} if "lengths" in given else set()
        return {key: value for key, value in DEFAULTS.items() if key not in unset} | given

    def get(self, key: str) -> str:
        """A value, "" where there is none."""
        return self.texts.get(key, "")

    @cached_property
    def base(self) -> Gpu:
        """The GPU as it is."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Taken)  # the answer says which GPU it is of
            return load_gpu(self.get("gpu"))

    @cached_property
    def changes(self) -> dict[str, str]:
        """Turned figures of the GPU and their values, as ``--set`` takes them."""
        return {path: self.texts[key] for key, path in self.figures.items() if key in self.texts}

    @cached_property
    def figures(self) -> dict[str, str]:
        """The figure of the GPU behind each key that turns one; that of the tensor cores is the number format's."""
        paths = {key: path for key, (_, path, _) in FIGURES.items()}
        dtype = read_dtype(self.get("dtype"))  # what is none is refused with the question
        return paths | {"tensor": TENSOR.figure_for(dtype if dtype in DTYPE_BYTES else DEFAULTS["dtype"])}

    @cached_property
    def gpu(self) -> Gpu:
        """The GPU with what is turned."""
        gpu = self.base
        for path, value in self.changes.items():
            try:
                gpu = gpu.replace(path, value)
            except InputError as error:
                raise InputError(f"--set {path}={value}: {error}") from None
        return gpu

    @property
    def machines(self) -> list[Gpu]:
        """The GPU as it is, and beside it the one with what is turned, where anything is."""
        return list(dict.fromkeys((self.base, self.gpu)))

    @cached_property
    def mask(self) -> str:
        """The mask as ``--mask`` takes it: the text, and blocks at random of the density beside it."""
        text, density = self.get("mask"), self.get("density")
        if not density:
            return text
        try:
            share = float(density)
        except ValueError:
            share = -1.0
        if not 0 < share <= 1:
            raise InputError(f"density is {shown(density)}; allowed: above 0 and up to 1, such as 0.1")
        if share == 1:
            return text
        band = {"": "causal", "full": ""}.get(text, text)
        return ", ".join(filter(None, (band, f"random {100 * share:g} % x{BLOCK}")))

    @cached_property
    def flags(self) -> dict[str, Any]:
        """The flags of the question, as the command line reads them."""
        found: dict[str, Any] = {name: self.texts[name] for name in TEXTS if self.get(name)}
        for name in COUNTS:
            if name in self.texts:
                try:
                    found[name] = read_count(self.texts[name])
                except InputError as error:
                    raise InputError(f"--{name.replace('_', '-')}: {error}") from None
        if (causal := self.get("causal").lower()) not in ("", "true", "false"):
            raise InputError(f"causal is {shown(causal)}; allowed: true or false")
        found |= {"mask": self.mask or None, "causal": causal == "true"}
        found["passes"] = read_pass(found.pop("pass"))
        return found | {"dtype": read_dtype(found["dtype"])}

    def workload(self, **other: int) -> Workload:
        """The question; `other` flags in place of its own."""
        flags = {"heads": None, "seq": None, "head_dim": None} | self.flags | other
        return asked.workload(**flags | {"model": self.filled.model if self.filled else None})

    @cached_property
    def filled(self) -> asked.Filled | None:
        """The model with the other flags over it; None without one."""
        own = ("heads", "kv_heads", "head_dim", "head_dim_v", "causal", "window", "mask")
        given = {name: self.flags[name] for name in own if name in self.flags}
        return asked.filled(self.flags["model"], **given) if "model" in self.flags else None

    @property
    def title(self) -> str:
        """Words before the question."""
        return asked.title_of(self.filled, self.flags.get("tp", 1), *self._l2)

    @property
    def cache(self) -> str:
        """State of the L2 before the call: cold or warm."""
        given, passes, lengths = self._l2
        return asked.cache_of(given, self.filled, passes, lengths)

    @property
    def _l2(self) -> tuple[str | None, str, str | None]:
        return self.get("cache") or None, self.flags["passes"], self.flags.get("lengths")

    @cached_property
    def question(self) -> Workload:
        """The question."""
        return self.workload()

    @property
    def case_texts(self) -> list[str]:
        """The workloads of a budget, each as ``--case`` takes it; empty where it is of the question alone."""
        return [text.strip() for text in self.get("case").split(";") if text.strip()]

    @property
    def cases(self) -> list[Case]:
        """The workloads of a budget."""
        weights = [weighted(text) for text in self.case_texts]
        mine = [(self._with(what), weight, what) for what, weight in weights] or [(self, 1.0, "")]
        return each_once([Case(one.question, weight, what, cache=one.cache) for one, weight, what in mine])

    def _with(self, what: str) -> State:
        """The question with what a case has of its own, over all flags of the command."""
        if is_file(what):
            raise InputError(f"--case {shown(what)} is a file; the page reads none: the command line does")
        where = f"--case {shown(what)}"
        own = {flag_of(key, QUESTION, where): value for key, value in pairs_of(what).items()}
        kept = (*QUESTION, "cache")
        given = {key: self.texts[key] for key in kept if key in self.texts} | {"mask": self.mask} | own
        return read_state(given)

    @cached_property
    def algorithm(self) -> str:
        """The one named, the one that the kernel runs, or the first that the command line would ask about."""
        if name := self.get("algorithm"):
            return name
        if name := self.get("kernel"):
            return running(match(name).record)[0].name
        return self.usual

    @cached_property
    def usual(self) -> str:
        """Algorithm that the command line asks about first, after unfused attention."""
        w = self.question
        return next(iter(only_for(w)), playing(w.without_window()).name)

    @property
    def implementations(self) -> list[str]:
        """The kernel, where one is named."""
        return [name for name in [self.get("kernel")] if name]

    def asks(self, gpu: Gpu) -> Question:
        """Question to play on a GPU."""
        tiles = "shipped" if self.changes and not gpu.changes else self.get("tiles")
        return compared(
            self.question, gpu, [self.algorithm], self.implementations, read_conditions(tiles=tiles, cache=self.cache)
        )[0]

    @property
    def unturned(self) -> State:
        """Question on the unchanged GPU."""
        return State(tuple((key, value) for key, value in self.given if key not in FIGURES))

    @property
    def stale(self) -> str:
        """Remark on an address that was made by another version, or with other fitted numbers."""
        now = {"v": attnsim.__version__, "cal": calibration()}
        forms = {"v": "version {}", "cal": "calibration {}"}
        other = [key for key in now if self.get(key) not in ("", now[key])]
        if not other:
            return ""
        made, here = (" and ".join(forms[key].format(one[key]) for key in other) for one in (self.texts, now))
        return f"This address was made with {made}; the numbers here are of {here}."


def read_state(given: object) -> State:
    """A state from a flat object of text, numbers and truth values."""
    if not isinstance(given, Mapping):
        raise InputError(f"state is {shown(given)}; give an object such as {{'gpu': 'h100', 'l2': '2x'}}")
    found: dict[str, str] = {}
    for key, value in given.items():
        if key not in KEYS:
            raise InputError(f"{shown(key)} is no key of a state; {nearest(str(key), KEYS)}")
        if not isinstance(value, (str, int, float)):
            raise InputError(f"{key} is {shown(value)}; give text or a number")
        text = str(value).lower() if isinstance(value, bool) else str(value).strip()
        if len(text) > MOST or not text.isprintable():
            raise InputError(f"{key} is {shown(text)}; allowed: at most {MOST:,} letters on one line")
        if names_file(text):
            raise InputError(f"{key} is {shown(text)}, a file; the page reads none: the command line does")
        found[key] = text
    return State(tuple((key, found[key]) for key in KEYS if found.get(key)))
