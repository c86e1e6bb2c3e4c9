"""The flags that several commands share, and what they mean together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from attnsim.cli.help import CONDITIONS, MACHINE, OUTPUT, QUESTION
from attnsim.errors import InputError
from attnsim.models.question.words import listed, read_count, read_dtype, read_number, read_pass, whole

T = TypeVar("T")


def flag(metavar: str | None, help_text: str, *names: str, panel: str | None = None) -> Any:
    """A flag that takes a value: what stands for it in the help, and the flag's names where they are not the usual."""
    return typer.Option(*names, metavar=metavar, help=help_text, rich_help_panel=panel)


def switch(help_text: str, *names: str, panel: str | None = None) -> Any:
    """A flag that takes none."""
    return flag(None, help_text, *names, panel=panel)


_machine, _asked = partial(flag, panel=MACHINE), partial(flag, panel=QUESTION)
"""Flags that name a GPU and kernels, and those of a question."""

KernelFile = Annotated[
    Path | None, _machine("FILE", "A kernel file that attnsim kernels trace wrote, in place of a question.", "--kernel")
]
ManyGpus = Annotated[list[str], _machine("ID", "Id, name (h100) or GPU file; repeat it or use commas.")]
OneGpu = Annotated[str, _machine("ID", "Id, name (h100) or GPU file.")]
ModelName = Annotated[
    str | None,
    _asked("ID", "Model (see attnsim models), YAML file or Hugging Face config.json; other flags override it."),
]
AlgorithmName = Annotated[str, _machine("NAME", "As for predict.")]
DrawnNames = Annotated[
    str,
    _machine("NAMES", "Names with commas; default: naive,flash, and flash alone of lengths, pages, prefixes, trees."),
]
AlgorithmNames = Annotated[str, _machine("NAMES", "Names with commas.")]
ImplementationName = Annotated[str | None, _machine("NAME", "Whose kernels to imitate.")]
ImplementationNames = Annotated[
    str, _machine("NAMES", "Whose kernels to imitate; with commas, each of them that runs the algorithm.")
]
Tile = Annotated[str | None, _machine("ROWSxKEYS", "Tile of the forward kernel; default: as shipped.")]
Mode = Annotated[str, flag("MODE", "fast or exact.", panel=CONDITIONS)]
Cache = Annotated[
    str | None, flag("L2", "cold or warm L2; default: cold for decode of a model, else warm.", panel=CONDITIONS)
]
Launch = Annotated[
    str,
    flag("HOW", "How kernels are launched: stream, host (from Python), graph, or kernel (alone).", panel=CONDITIONS),
]
Calibration = Annotated[
    Path | None,
    flag("FILE", "Your own timings, as attnsim adapt writes them: near them answers are corrected.", panel=CONDITIONS),
]
Baseline = Annotated[
    str | None, flag("NAME", "What ratios are over: an algorithm, implementation or GPU of the table.", panel=OUTPUT)
]
Changes = Annotated[
    list[str], _machine("KEY=VALUE", "Change the GPU: hbm.bandwidth=6TB/s, sm.count=160, ...=2x.", "--set")
]


def _read(read: Callable[[str], T], text: object) -> T:
    """A number from a flag; Typer's own message does not say what was given."""
    try:
        return read(str(text))
    except InputError as error:
        raise typer.BadParameter(str(error)) from None


def count(help_text: str, panel: str | None = QUESTION, *, low: int = 1, high: int | None = None, **more: Any) -> Any:
    """A flag that takes a whole number, such as 64k."""
    parser = partial(_read, partial(read_count, low=low, high=high))
    return typer.Option(parser=parser, **{"metavar": "N", "help": help_text, "rich_help_panel": panel, **more})


def amount(help_text: str, panel: str | None = None, *, metavar: str = "X") -> Any:
    """A flag that takes a number, from 0."""
    return typer.Option(parser=partial(_read, read_number), metavar=metavar, help=help_text, rich_help_panel=panel)


Budget = Annotated[int | None, count("Most segment executions that fast mode plays of a call (20k).", CONDITIONS)]
Batch = Annotated[int, count("Sequences.")]
Heads = Annotated[int | None, count("Query heads.")]
KvHeads = Annotated[int | None, count("Key/value heads; default: as --heads.")]
Seq = Annotated[int | None, count("Sequence length (64k); with --pass decode the keys in the cache.")]
Seqs = Annotated[
    str | None,
    _asked("N", "Sequence length (64k); with --pass decode the keys in the cache. With --layer several with commas."),
]
SeqKv = Annotated[int | None, count("Number of keys, where it differs from that of queries.")]
LengthsText = Annotated[
    str | None,
    _asked(
        "TEXT", "Queries and keys (new ones too) of sequences: '1:4096 x 63, 512:2560', a .csv file, a distribution."
    ),
]
PageSize = Annotated[int | None, count("Keys of a page of the cache.")]
Prefix = Annotated[int | None, count("Keys at the beginning that all sequences share.")]
TreeText = Annotated[str | None, _asked("PARENTS", "Draft tokens that branch: the parent of each, such as '-1 0 0 1'.")]
HeadDim = Annotated[int | None, count("Width of Q and K.")]
HeadDimV = Annotated[int | None, count("Width of V; default: as --head-dim.")]
Tp = Annotated[
    int, count("GPUs that share each layer (tensor parallel): one GPU's heads; all-reduces in a step alone.", high=1024)
]
ExpertGpus = Annotated[int | None, count("Of a step: GPUs among which whole experts are divided.", high=64)]
LatentText = Annotated[
    str | None, _asked("RANKxROPE", "Latent vector that is cached instead of K and V, such as 512x64.")
]
OperationsText = Annotated[
    str | None, _asked("TEXT", "Passes of unfused attention, such as 'scale, softmax, dropout 0.1'.")
]
SelectionText = Annotated[
    str | None,
    _asked(
        "TEXT", "Keys that content selects, such as 'top 16x64, compress 32 step 16, window 512'; for nsa and its kin."
    ),
]
Window = Annotated[int | None, count("Keys seen to the left, the query's own included; for sliding-window only.")]
Reach = Annotated[int | None, count("Keys seen to the left, the query's own included.")]
Dtype = Annotated[
    str,
    typer.Option(parser=read_dtype, metavar="FORMAT", help="fp32, fp16, bf16 or fp8.", rich_help_panel=QUESTION),
]
Causal = Annotated[bool, switch("Causal mask, last query against last key.", "--causal", panel=QUESTION)]
KvDtype = Annotated[str | None, _asked("FORMAT", "Number format of K and V, where it differs from that of Q: fp8.")]
Sinks = Annotated[bool, switch("Attention sinks: one more term in the sum of each softmax.", "--sinks", panel=QUESTION)]
Softcap = Annotated[str | None, _asked("X", "Soft cap of scores: X tanh(score / X).")]
MaskText = Annotated[str | None, _asked("TEXT", "Patterns for sparse, such as 'causal, window 512, global 16'.")]
Pass = Annotated[
    str,
    typer.Option(
        "--pass",
        parser=read_pass,
        metavar="PASS",
        help="fwd (prefill), bwd, fwd+bwd (training) or decode.",
        rich_help_panel=QUESTION,
    ),
]
StyleName = Annotated[str, flag("NAME", "light, dark, print (grey) or latex (serif).", "--style", panel=OUTPUT)]
PictureWidth = Annotated[str, flag("NAME", "page, or column of a two-column paper.", "--width", panel=OUTPUT)]
Json = Annotated[bool, switch("A list of objects on stdout, and nothing else.", "--json", panel=OUTPUT)]
Verbose = Annotated[bool, switch("More columns and tables.", "--verbose", "-v", panel=OUTPUT)]
Details = Annotated[bool, switch("More columns, and all remarks.", "--verbose", "-v", panel=OUTPUT)]
Pictures = Annotated[list[Path], flag("FILE", "Picture, .png, .svg, .pdf or .pgf; repeat it for several.", "--out")]
Plot = Annotated[
    Path | None, flag("FILE", "Picture, .png, .svg, .pdf or .pgf, with its CSV beside it.", "--plot", panel=OUTPUT)
]
CaptionPlace = Annotated[
    str, flag("WHERE", "Title and caption: in the picture, in a file beside it, or none.", "--caption", panel=OUTPUT)
]


def lengths(text: str | None, several: bool) -> list[int | None]:
    """The lengths of ``--seq``, one, or `several` with commas; without the flag one that is not known."""
    if text is None:
        return [None]
    found: list[int | None] = []
    for word in listed(text, "--seq") if several or whole(text) is None else [text]:
        try:
            found.append(_read(read_count, word))
        except typer.BadParameter as error:
            raise InputError(f"--seq: {error.message}; several with commas and --layer") from None
    return list(dict.fromkeys(found))


def words(values: list[str], flag: str) -> list[str]:
    """The values of a flag that may be repeated or hold commas.

    Raises
    ------
    InputError
        When there are none, or one twice.
    """
    found = [word.strip() for value in values for word in value.split(",")]
    if not found or not all(found):
        raise InputError(
            f"{flag} is {', '.join(map(repr, values)) or 'missing'}; give one name, or several with commas"
        )
    for word in found:
        if found.count(word) > 1:
            raise InputError(f"{flag} names {word} twice; keep one")
    return found


def some_words(text: str, flag: str) -> list[str]:
    """The values of a flag that holds commas; none where it is not given."""
    return words([text], flag) if text else []


def read_settings(settings: Iterable[str]) -> dict[str, str]:
    """Figures and values of ``KEY=VALUE``."""
    return pairs(settings, "--set", "KEY=VALUE", "hbm.bandwidth=6TB/s")


def pairs(texts: Iterable[str], flag: str, form: str, example: str) -> dict[str, str]:
    """Names and values of a flag that is given as ``NAME=VALUE``, several times.

    Raises
    ------
    InputError
        For one that has another form, and for a name given twice.
    """
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = (part.strip() for part in text.partition("="))
        if not (name and equals and value):
            raise InputError(f"{flag} {text!r} is not {form}; write {flag} {example}")
        if name in found:
            raise InputError(f"{flag} {name} is given twice; keep one")
        found[name] = value
    return found


SplitChanges = Annotated[bool, switch("What each of several --set brings: alone, last, on average.", "--split")]


def check_split(settings: Sequence[str]) -> None:
    """Refuse a split of fewer than two changes."""
    if len(settings) < 2:
        given = f"one, {settings[0]}" if settings else "none"
        raise InputError(f"--split shares out several changes and there is {given}; give --set KEY=VALUE twice or more")
