"""Tables of any kernel, a library's or a file's: its blocks on an SM, and the call with each figure twice as good."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from attnsim import wording
from attnsim.api.comparing.levers import Lever
from attnsim.api.explaining import KernelFit
from attnsim.cli import show


def print_kernels(out: Console, kernels: Sequence[KernelFit]) -> None:
    """A line a kernel: its grid, what a block takes, how many an SM holds, and its time."""
    rows = [
        {
            "kernel": kernel.kernel,
            "blocks": f"{kernel.blocks:,}",
            "threads": kernel.threads,
            "regs": kernel.registers_per_thread,
            "smem KiB": f"{kernel.shared_memory_bytes / 1024:g}",
            "blocks/SM": kernel.blocks_per_sm,
            "limited by": kernel.limited_by,
            "waves": wording.number(kernel.waves),
            "time": wording.time_text(kernel.time_s),
            "bound": str(kernel.bound),
        }
        for kernel in kernels
    ]
    show.print_rows(out, "Kernels", rows, whole=("kernel",))


COLUMNS = ("share: of the time; as busy at: how much faster the busiest unit has to be for this one to be as busy.",)
"""Remarks on the columns of the units."""


def print_levers(out: Console, levers: Sequence[Lever], *, bounded: bool) -> None:
    """A line a unit: how busy it is, and the call with its figure twice as good; `bounded`: whether any unit bounds."""
    rows = [
        {
            "unit": lever.unit.replace("_", " "),
            "busy": "" if lever.busy_s is None else wording.time_text(lever.busy_s),
            "share": "" if lever.share is None else f"{100 * lever.share:.0f} %",
            "as busy at": _as_busy_at(lever.takes_over_at, bounded),
            "figure": lever.figure,
            "now": lever.value,
            "speedup": f"{lever.speedup:.2f}x",
            "busiest then": lever.busiest.replace("_", " "),
        }
        for lever in levers
    ]
    title = "Units, and the call with each figure twice as good (a latency or a launch half as long)"
    right = ("busy", "share", "as busy at", "now", "speedup")
    show.print_rows(out, title, rows, right=right, whole=("unit", "figure", "now"))


def _as_busy_at(factor: float | None, bounded: bool) -> str:
    """The factor by which the busiest unit would have to be faster."""
    if factor is None or not bounded:
        return ""
    return "now" if factor == 1.0 else wording.times_text(factor)
