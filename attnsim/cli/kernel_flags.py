"""The flags that name a kernel and its launch, which `attnsim kernels run` and `attnsim kernels trace` share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Annotated

import typer

from attnsim.cli import options
from attnsim.cli.given import is_given
from attnsim.cli.options import flag
from attnsim.errors import InputError
from attnsim.kernels.catalog import Operation
from attnsim.models.llm import asked
from attnsim.models.question.workload import Workload
from attnsim.ptx.foreign import launching
from attnsim.ptx.foreign.launching import Ready


@dataclass(frozen=True, kw_only=True)
class KernelFlags:
    """The kernel, and its launch where it is not one of ours."""

    name: Annotated[str, typer.Argument(metavar="NAME", help="As in `attnsim kernels list`.")] = ""
    ptx: Annotated[Path | None, flag("FILE", "Another kernel in place of NAME: of PTX.")] = None
    cuda: Annotated[Path | None, flag("FILE", "Another kernel: of a CUDA file, by NVRTC.")] = None
    triton: Annotated[str, flag("WHERE:NAME", "Another kernel: a @triton.jit function of a file or module.")] = ""
    entry: Annotated[str, flag("NAME", "Of the PTX; default: the only entry point.")] = ""
    grid: Annotated[str, flag("X,Y,Z", "Blocks of another kernel.")] = ""
    block: Annotated[str, flag("X,Y,Z", "Threads of a block; default: what the kernel asks for.")] = ""
    arg: Annotated[list[str], flag("NAME=VALUE", "'Q=fp16[2,8,500,64]', 'O=fp16[64]:empty', 'N=500'; in order.")] = (
        field(default_factory=list)
    )
    shared: Annotated[int | None, options.count("Dynamic shared memory of a block.", None, low=0, metavar="BYTES")] = (
        None
    )
    arch: Annotated[str, flag("SM", "What --cuda and --triton compile for; default: 80.")] = ""
    option: Annotated[list[str], flag("TEXT", "For the compiler: '-DN=64', or for Triton 'num_warps=8'.")] = field(
        default_factory=list
    )

    @property
    def given(self) -> list[str]:
        """Flags that name a kernel that is not ours."""
        return [f"--{name}" for name in NAMING if getattr(self, name)]

    def ready(self, inputs: str, seed: int) -> Ready:
        """Read or compile a kernel that is not ours, and make its arguments."""
        return launching.prepare(
            ptx=self.ptx,
            cuda=self.cuda,
            triton=self.triton,
            entry=self.entry,
            arch=self.arch,
            options=self.option,
            grid=_numbers(self.grid, "--grid"),
            block=_numbers(self.block, "--block") if self.block else None,
            arguments=self.arg,
            shared_memory_bytes=self.shared,
            inputs=inputs,
            seed=seed,
        )

    def refuse_mixed(self, context: typer.Context, own: Sequence[str], others: Sequence[str]) -> None:
        """Refuse flags of our own operations beside another kernel, and the other way round.

        Parameters
        ----------
        context : typer.Context
        own, others : sequence of str
            The command's flags, beside those of all, for one of ours alone and for another kernel alone.
        """
        what = [*([self.name] if self.name else []), *self.given]
        if len(what) != 1:
            told = f"{' and '.join(what)} are given" if what else f"nothing to {context.command.name} is given"
            raise InputError(f"{told}; give one of NAME (attnsim kernels list), --ptx, --cuda and --triton")
        launching = (one.name for one in fields(self) if one.name not in ("name", *NAMING))
        refused = (*launching, *others) if self.name else (*(one.name for one in fields(OwnFlags)), *own)
        if wrong := [
            f"--{one.replace('_', '-')}" for one in context.params if one in refused and is_given(context, one)
        ]:
            raise InputError(
                f"{', '.join(wrong)}: not for {what[0]}; "
                f"only with {'--ptx, --cuda or --triton' if self.name else 'NAME'}"
            )


NAMING = ("ptx", "cuda", "triton")
"""Flags that name a kernel that is not ours."""


@dataclass(frozen=True, kw_only=True)
class OwnFlags:
    """The question that an operation of ours runs."""

    batch: options.Batch = 1
    heads: options.Heads = 2
    kv_heads: options.KvHeads = None
    seq: options.Seq = 128
    seq_kv: options.SeqKv = None
    head_dim: options.HeadDim = 64
    dtype: Annotated[str, flag(None, "fp16 or bf16.")] = "bf16"
    causal: options.Causal = False
    window: options.Reach = None
    mask: Annotated[str, flag("TEXT", "A pattern such as 'causal, window 512, global 16'.")] = ""
    sinks: options.Sinks = False
    softcap: options.Softcap = None

    def workload(self, operation: Operation) -> Workload:
        """The question."""
        if self.dtype not in ("fp16", "bf16"):
            raise InputError(f"--dtype {self.dtype}: the kernels take fp16 and bf16")
        return asked.workload(**asdict(self) | {"mask": self.mask or None, "passes": operation.passes})


def _numbers(text: str, flag: str) -> list[int]:
    """One to three whole numbers of a flag."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"{flag} is {text!r}; give one to three whole numbers, as {flag} 4,8") from None
