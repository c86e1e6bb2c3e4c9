"""The flags that several commands share, and what they mean together."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnsim.models.errors import InputError

if TYPE_CHECKING:
    from attnsim.models.hardware.gpu import Gpu
    from attnsim.models.llm.model import Model
    from attnsim.models.mask.mask import Mask
    from attnsim.models.question.workload import Workload

ManyGpus = Annotated[
    list[str], typer.Option("--gpu", metavar="ID", help="Built-in id or GPU file; repeat it or use commas.")
]
OneGpu = Annotated[str, typer.Option("--gpu", metavar="ID", help="Built-in id or GPU file.")]
AlgorithmName = Annotated[str, typer.Option(help="As for predict.")]
AlgorithmNames = Annotated[str, typer.Option(help="Names with commas.")]
ImplementationName = Annotated[str | None, typer.Option(help="Whose kernels to imitate.")]
ImplementationNames = Annotated[
    str, typer.Option(help="Whose kernels to imitate; with commas, each of them that runs the algorithm.")
]
Tile = Annotated[str | None, typer.Option(metavar="ROWSxKEYS", help="Tile of the forward kernel.")]
Mode = Annotated[str, typer.Option(help="fast or exact.")]
Cache = Annotated[str, typer.Option(help="cold or warm L2.")]
Launch = Annotated[str, typer.Option(help="stream, host (from Python), graph or kernel (alone).")]
Changes = Annotated[
    list[str],
    typer.Option("--set", metavar="KEY=VALUE", help="Change the GPU: hbm.bandwidth=6TB/s, sm.count=160, ...=2x."),
]


def _whole(text: str | int) -> int:
    """A count from a flag; Typer's own message does not say what was given."""
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise typer.BadParameter(f"{text!r} given; allowed: whole numbers from 1")
    return value


def _count(help_text: str) -> Any:
    return typer.Option(parser=_whole, metavar="N", help=help_text)


def _budget(text: str | int) -> int:
    """A whole number; how large it may be is asked where the other conditions are."""
    try:
        return int(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} given; allowed: whole numbers") from None


Budget = Annotated[
    int | None, typer.Option(parser=_budget, metavar="N", help="Segment executions of a call that fast mode plays.")
]
Batch = Annotated[int, _count("Sequences.")]
Heads = Annotated[int | None, _count("Query heads.")]
KvHeads = Annotated[int | None, _count("Key/value heads; default: as --heads.")]
Seq = Annotated[int | None, _count("Sequence length; with --pass decode the keys in the cache.")]
Seqs = Annotated[
    str | None,
    typer.Option(
        metavar="N",
        help="Sequence length; with --pass decode the keys in the cache. With --layer several with commas.",
    ),
]
SeqKv = Annotated[int | None, _count("Keys, where not as many as queries.")]
HeadDim = Annotated[int | None, _count("Width of Q and K.")]
HeadDimV = Annotated[int | None, _count("Width of V; default: as --head-dim.")]
LatentText = Annotated[
    str | None,
    typer.Option("--latent", metavar="RANKxROPE", help="Latent that is cached instead of K and V, such as 512x64."),
]
OperationsText = Annotated[
    str | None,
    typer.Option(
        "--operations", metavar="TEXT", help="What unfused attention runs, such as 'scale, softmax, dropout 0.1'."
    ),
]
Window = Annotated[int | None, _count("Keys seen to the left, the query's own included; for sliding-window only.")]
Reach = Annotated[int | None, _count("Keys seen to the left, the query's own included.")]
Dtype = Annotated[str, typer.Option(help="fp32, fp16, bf16 or fp8.")]
Causal = Annotated[bool, typer.Option("--causal", help="Causal mask, last query against last key.")]
MaskText = Annotated[
    str | None,
    typer.Option("--mask", metavar="TEXT", help="Patterns for sparse, such as 'causal, window 512, global 16'."),
]
Pass = Annotated[str, typer.Option("--pass", help="fwd, bwd, fwd+bwd or decode.")]
StyleName = Annotated[str, typer.Option("--style", help="light, dark, print (grey) or latex (serif).")]
PictureWidth = Annotated[str, typer.Option("--width", help="page, or column of a two-column paper.")]
Json = Annotated[bool, typer.Option("--json", help="A list of objects on stdout, and nothing else.")]


def workload(
    *,
    batch: int = 1,
    heads: int | None,
    kv_heads: int | None = None,
    seq: int | None,
    seq_kv: int | None = None,
    head_dim: int | None,
    head_dim_v: int | None = None,
    dtype: str = "bf16",
    causal: bool = False,
    window: int | None = None,
    mask: str | None = None,
    passes: str = "fwd",
    latent: str | None = None,
    operations: str | None = None,
    model: Model | None = None,
) -> Workload:
    """The question that the flags ask, or, where they filled a model (`attnsim.cli.model_flags`), that it asks.

    With ``--pass decode`` alone, `seq` is the length of the cache and there is one query a sequence; with
    `seq_kv` too, that is the cache and `seq` the queries.

    Raises
    ------
    InputError
    """
    from attnsim.models.mask.mask import Mask
    from attnsim.models.question.operations import Operations
    from attnsim.models.question.workload import Latent, Workload

    named = None if operations is None else Operations.parse(operations)
    for flag, value in (("--heads", heads), ("--seq", seq), ("--head-dim", head_dim)):
        if value is None and (model is None or flag == "--seq"):
            raise InputError(f"{flag} is missing; give {flag} N, or a table of questions with --cases")
    if model is not None and latent is not None:
        raise InputError(f"--latent {latent} and --model exclude each other; a model says itself what it caches")
    if model is not None and seq is not None:
        of_model = model.workload(batch=batch, seq=seq, seq_kv=seq_kv, passes=passes, dtype=dtype)
        return replace(of_model, operations=named)
    assert heads is not None and seq is not None and head_dim is not None
    queries, keys = seq, seq_kv or seq
    if passes == "decode" and seq_kv is None:
        queries = 1
    return Workload(
        batch=batch,
        heads_q=heads,
        seq_q=queries,
        head_dim=head_dim,
        heads_kv=kv_heads or heads,
        seq_kv=keys,
        head_dim_v=head_dim_v or head_dim,
        dtype=dtype,
        passes=passes,
        mask=mask_of(mask, causal, window, Mask.full()),
        latent=Latent.parse(latent) if latent is not None else None,
        operations=named,
    )


def mask_of(given: str | None, causal: bool, window: int | None, own: Mask) -> Mask:
    """The mask given; else `own` with the flags' limits: a window in place of its own.

    Raises
    ------
    InputError
    """
    from attnsim.models.mask.mask import Mask

    if given is not None:
        if causal or window is not None:
            raise InputError(
                f"--mask {given!r} says all of the mask; put causal and window into it, and leave the flags out"
            )
        return Mask.parse(given)
    if window is not None:
        return Mask.sliding_window(window, causal or own.is_causal)
    return own & Mask.causal() if causal else own


def lengths(text: str | None) -> list[int | None]:
    """The lengths of ``--seq``, one or several with commas; without the flag one that is not known.

    Raises
    ------
    InputError
    """
    if text is None:
        return [None]
    found: list[int | None] = []
    for word in text.split(","):
        try:
            found.append(_whole(word.strip()))
        except typer.BadParameter as error:
            raise InputError(f"--seq: {error.message}; several with commas and --layer") from None
    return list(dict.fromkeys(found))


def words(values: list[str], flag: str) -> list[str]:
    """The values of a flag that may be repeated or hold commas.

    Raises
    ------
    InputError
        When there are none.
    """
    found = [word.strip() for value in values for word in value.split(",")]
    if not found or not all(found):
        raise InputError(
            f"{flag} is {', '.join(map(repr, values)) or 'missing'}; give one name, or several with commas"
        )
    return list(dict.fromkeys(found))


def changed(gpu: Gpu, settings: list[str]) -> Gpu:
    """The GPU with every ``KEY=VALUE`` applied in order.

    Raises
    ------
    InputError
    """
    seen: set[str] = set()
    for setting in settings:
        key, equals, value = (part.strip() for part in setting.partition("="))
        if not (key and equals and value):
            raise InputError(f"--set {setting!r} is not KEY=VALUE; write --set hbm.bandwidth=6TB/s")
        if key in seen:
            raise InputError(f"--set {key} is given twice; keep one")
        seen.add(key)
        try:
            gpu = gpu.replace(key, value)
        except InputError as error:
            raise InputError(f"--set {setting}: {error}") from None
    return gpu


def check_output(path: Path) -> None:
    """Refuse, before anything is computed, a file that could not be written.

    Raises
    ------
    InputError
    """
    if path.is_dir():
        raise InputError(f"{path} is a folder; give a file name")
    folder = path.parent
    if not folder.is_dir():
        raise InputError(f"{path} cannot be written: {folder} is not a folder")


def make_folder(path: Path) -> None:
    """Make the folder of ``--out`` where it is not there.

    Raises
    ------
    InputError
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--out {path} cannot be made a folder: {error.strerror or error}") from None


def new_gpu_file(path: Path, force: bool) -> str:
    """The id of a GPU whose file is to be written, after refusing what could not be.

    Raises
    ------
    InputError
    """
    import re

    from attnsim.models.hardware.file_format import ID_PATTERN
    from attnsim.models.hardware.files import builtin_gpu_ids

    if path.suffix.lower() not in (".yaml", ".yml"):
        raise InputError(f"{path}: end the name with .yaml")
    name = path.stem.lower()
    if not re.fullmatch(ID_PATTERN, name):
        raise InputError(f"{path}: the name becomes the GPU's id; allowed: letters, digits, '.', '_' and '-'")
    if name in builtin_gpu_ids():
        raise InputError(f"{path}: {name} is a built-in GPU; choose another name")
    check_output(path)
    if path.exists() and not force:
        raise InputError(f"{path} exists; give another name, or --force to replace it")
    return name
