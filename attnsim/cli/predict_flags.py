"""The flags of `attnsim predict`, whichever of its answers they ask for."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from attnsim.cli import given, options, table_flags
from attnsim.cli.help import MACHINE
from attnsim.cli.look import Plot
from attnsim.cli.options import flag, switch
from attnsim.cli.question_flags import ConditionFlags, QuestionFlags
from attnsim.errors import InputError


@dataclass(frozen=True, kw_only=True)
class StepPlot(Plot):
    """The picture of a step."""

    plot: Annotated[Path | None, flag("FILE", "Picture of the step of --layer --lengths, and its CSV.")] = None


@dataclass(frozen=True, kw_only=True)
class PredictFlags:
    """The flags of `attnsim predict`."""

    context: typer.Context
    gpu: options.ManyGpus = field(default_factory=list)
    kernel: options.KernelFile = None
    algorithm: Annotated[
        str,
        flag(None, "Names with commas; default: naive,flash, and what has the window or the patterns.", panel=MACHINE),
    ] = ""
    implementation: options.ImplementationNames = ""
    baseline: options.Baseline = None
    layer: Annotated[
        bool, switch("The whole layer of --model: projections, attention and MLP; cold L2.", "--layer")
    ] = False
    flags: QuestionFlags
    ep: options.ExpertGpus = None
    seq: options.Seqs = None
    changes: options.Changes = field(default_factory=list)
    split_changes: options.SplitChanges = False
    tiles: Annotated[str | None, flag(None, "shipped or retuned; default: shipped, and both with --set.")] = None
    tile: options.Tile = None
    how: ConditionFlags
    cases: Annotated[Path | None, flag("FILE", "Case table, CSV or Parquet.")] = None
    out: Annotated[Path | None, flag("FILE", "Where the predicted table goes.")] = None
    plot: StepPlot
    columns: table_flags.ColumnFlags
    verbose: options.Details = False
    json: options.Json = False

    def __post_init__(self) -> None:
        """Refuse what this question cannot be asked with."""
        if self.plot.plot is not None and not (self.layer and self.flags.lengths is not None):
            raise InputError("--plot draws the step of --layer --lengths; attnsim plot draws other answers")
        if self.kernel is not None or self.cases is not None:
            return
        self.columns.check_without("--cases")
        if self.out is not None:
            raise InputError(f"--out {self.out} goes with --cases; for one question use --json and redirect it")
        if self.tile is not None and self.tiles is not None:
            raise InputError(f"--tile {self.tile} and --tiles {self.tiles} exclude each other; leave one out")
        if not (self.layer and self.flags.lengths):
            given.refuse(self.context, "goes with --layer --lengths, a step of a server", ("ep",))

    @property
    def lengths(self) -> list[int | None]:
        """The lengths of ``--seq``."""
        found = options.lengths(self.seq, several=self.layer)
        if len(found) > 1 and not self.layer:
            raise InputError(
                f"--seq {self.seq} has several lengths, which go with --layer; give one, or a table with --cases"
            )
        return found
