"""The flags that name a kernel and its launch, which `attnsim kernels run` and `attnsim kernels trace` share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from attnsim.models.errors import InputError

Name = Annotated[str, typer.Argument(metavar="NAME", help="As in `attnsim kernels list`.")]
Ptx = Annotated[Path | None, typer.Option(metavar="FILE", help="Another kernel in place of NAME: of PTX.")]
Cuda = Annotated[Path | None, typer.Option(metavar="FILE", help="Another kernel: of a CUDA file, by NVRTC.")]
Triton = Annotated[
    str, typer.Option(metavar="WHERE:NAME", help="Another kernel: a @triton.jit function of a file or module.")
]
Entry = Annotated[str, typer.Option(metavar="NAME", help="Of the PTX; default: the only entry point.")]
Grid = Annotated[str, typer.Option(metavar="X,Y,Z", help="Blocks of another kernel.")]
Block = Annotated[str, typer.Option(metavar="X,Y,Z", help="Threads of a block; default: what the kernel asks for.")]
Arg = Annotated[
    list[str],
    typer.Option(metavar="NAME=VALUE", help="'Q=fp16[2,8,500,64]', 'O=fp16[64]:empty', 'N=500'; in order."),
]
Shared = Annotated[int | None, typer.Option(metavar="BYTES", help="Dynamic shared memory of a block.")]
Arch = Annotated[str, typer.Option(metavar="SM", help="What --cuda and --triton compile for; default: 80.")]
Compiler = Annotated[
    list[str], typer.Option(metavar="TEXT", help="For the compiler: '-DN=64', or for Triton 'num_warps=8'.")
]
Dtype = Annotated[str, typer.Option(help="fp16 or bf16.")]
Mask = Annotated[str, typer.Option("--mask", metavar="TEXT", help="A pattern such as 'causal, window 512, global 16'.")]

OWN_FLAGS = tuple(
    f"--{name}"
    for name in ("batch", "heads", "kv-heads", "seq", "seq-kv", "head-dim", "dtype", "causal", "window", "mask")
)
"""Of our own operations alone."""


def refuse_mixed(
    context: typer.Context, name: str, given: Sequence[str], own: Sequence[str], others: Sequence[str]
) -> None:
    """Refuse flags of our own operations beside another kernel, and the other way round.

    Raises
    ------
    InputError
    """
    flags = [
        f"--{one.replace('_', '-')}"
        for one in context.params
        if getattr(context.get_parameter_source(one), "name", "") == "COMMANDLINE"
    ]
    what = [*([name] if name else []), *given]
    if len(what) != 1:
        told = f"{' and '.join(what)} are given" if what else f"nothing to {context.command.name} is given"
        raise InputError(f"{told}; give one of NAME (attnsim kernels list), --ptx, --cuda and --triton")
    if wrong := [flag for flag in flags if flag in (others if name else own)]:
        raise InputError(
            f"{', '.join(wrong)}: not for {what[0]}; only with {'--ptx, --cuda or --triton' if name else 'NAME'}"
        )
