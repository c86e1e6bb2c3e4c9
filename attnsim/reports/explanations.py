"""An explanation for people: kernels, what a block takes of an SM, bytes, and what each figure would bring."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from attnsim import wording
from attnsim.api.answer import Answer, Outcome
from attnsim.api.asking import KernelQuestion
from attnsim.api.bounds import fastest
from attnsim.api.cells import cells
from attnsim.api.comparing.levers import KernelLever, Lever, as_busy_text, busy_text, unturned
from attnsim.api.explaining import Explanation, KernelFit
from attnsim.api.lifted import KernelExplanation
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.hardware.units import unit_text
from attnsim.tables import Block, Remarks, Table, texts
from attnsim.wording import interval_text, number, share_text, time_text, times_text

WITHOUT_RANGE = (
    "Speedups of levers have no 90 % range; predict with --set, --tile or --implementation prints the range of one."
)
COLUMNS = "share: of the time; as busy at: how much faster the busiest unit has to be for this one to be as busy."
"""Remark on the columns of the units."""
LEVERS = "Units, and the call with each figure twice as good (a latency or a launch half as long)"
SAME = 1.005
"""Ratio of times below which two are said to be equal."""
BAR = 12
"""Characters of a bar that is as long as the call."""


def explanation(found: Explanation, gpu: Gpu, model: str) -> Iterator[Block]:
    """All that is said of an explanation; `model` stands before its question."""
    asked = found.prediction
    yield f"{model}{asked.workload}\n{gpu.id}{''.join(f', {change}' for change in asked.changes)}\n"
    yield f"{found.loop_nest}\n"
    longest = max(found.kernels, key=lambda kernel: kernel.time_s)
    yield kernels_table(found.kernels)
    yield Table(f"A block of {longest.kernel} against an SM", _limits(longest, gpu))
    yield bytes_table(found.tensors, "compulsory (with perfect reuse), asked", {"compulsory_bytes": "compulsory"})
    yield Table(
        f"Counts (useful FLOPs {found.useful_flops:,}; HBM bytes with perfect reuse {found.compulsory_bytes:,})",
        [{"": row.quantity, "count": f"{row.counted:,}"} for row in found.counts],
        right=("count",),
    )
    if asked.floor_s and asked.time_s:
        times = times_text(asked.time_s / asked.floor_s)
        yield f"Floor: {time_text(asked.floor_s)}, which no schedule undercuts; the call takes {times}."
        if nearest := fastest(gpu, asked.workload.passes):
            share = asked.floor_s / asked.time_s
            yield f"It reaches {share:.2f} of its floor; on {gpu.base_id} in this pass {nearest}."
        yield ""
    yield levers_table(found.levers, LEVERS, as_busy=True, bounded=found.turn is not None)
    yield from anew_sentences(found)
    if found.kernel_levers:
        yield _kernel_levers(found.kernel_levers)
    reached = ", ".join(f"{share:.2f} of {unit}" for unit, share in found.reached.items())
    now = [f"now: the datasheet's; of bandwidths kernels reach {reached}, and are busy by that."] if reached else []
    yield Remarks(f"{WITHOUT_RANGE} -v explains the columns.", (WITHOUT_RANGE, COLUMNS, *now))
    yield ""
    yield from _compared(found)
    yield from verdict(found)


def kernels_table(kernels: Sequence[KernelFit]) -> Table:
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
            "waves": number(kernel.waves),
            "time": time_text(kernel.time_s),
            "bound": str(kernel.bound),
        }
        for kernel in kernels
    ]
    return Table("Kernels", rows, whole=("kernel",))


def bytes_table(tensors: Sequence[object], first: str = "asked", more: dict[str, str] | None = None) -> Table:
    """A line for each tensor of a kernel: its bytes of each level in MB."""
    sizes = {**(more or {}), "l2_bytes": "L2", "hbm_bytes": "HBM"}
    megabytes = dict.fromkeys(sizes, lambda size: number(size / 1e6, 4))
    heads = {"kernel": "kernel", "tensor": "tensor", "direction": "", **sizes}
    rows = texts([{key: getattr(one, key) for key in heads} for one in tensors], megabytes, heads)
    return Table(
        f"Bytes, MB: {first} of the L2, passed on to HBM", rows, tuple(sizes.values()), whole=("kernel", "tensor")
    )


def levers_table(levers: Sequence[Lever], title: str, *, as_busy: bool = False, bounded: bool = True) -> Table:
    """A line a unit: how busy it is, and the call with its figure better.

    Parameters
    ----------
    levers
    title
    as_busy
        Whether to say how much faster the busiest unit has to be for this one to be as busy.
    bounded
        Whether any unit bounds the call.
    """
    rows = [
        {
            "unit": lever.unit.replace("_", " "),
            "busy": "" if lever.busy_s is None else time_text(lever.busy_s),
            "share": "" if lever.share is None else share_text(lever.share, 0),
            **({"as busy at": _as_busy_at(lever.takes_over_at if bounded else None)} if as_busy else {}),
            "figure": lever.figure,
            "now": lever.value,
            "speedup": f"{lever.speedup:.2f}x",
            "busiest then": lever.busiest.replace("_", " "),
        }
        for lever in levers
    ]
    return Table(title, rows, ("busy", "share", "as busy at", "now", "speedup"), ("unit", "figure", "now"))


def _as_busy_at(factor: float | None) -> str:
    """The factor by which the busiest unit would have to be faster."""
    return "" if factor is None else "now" if factor == 1.0 else times_text(factor)


def _kernel_levers(levers: Sequence[KernelLever]) -> Table:
    rows = [
        {
            "lever": lever.lever,
            "change": lever.change,
            "time": time_text(lever.time_s),
            "speedup": f"{lever.speedup:.2f}x",
            "busiest then": lever.busiest.replace("_", " "),
        }
        for lever in levers
    ]
    title = "The kernel changed in one property, on the same GPU"
    return Table(title, rows, ("time", "speedup"), ("lever", "change"))


def _limits(kernel: KernelFit, gpu: Gpu) -> list[dict[str, object]]:
    """A row for each resource of an SM: what a block takes, what there is, and how many blocks fit."""
    sm = gpu.sm
    buffers = ", ".join(f"{name} {size / 1024:g}" for name, size in kernel.buffers)
    registers = kernel.registers_per_thread * kernel.threads
    rows = {
        "threads": (f"{kernel.threads:,}", f"{sm.max_threads:,}"),
        "registers": (f"{registers:,} ({kernel.registers_per_thread} a thread)", f"{sm.registers:,}"),
        "shared memory": (
            f"{kernel.shared_memory_bytes / 1024:g} KiB{f' ({buffers})' if buffers else ''}"
            f" + {sm.shared_memory_reserved_bytes / 1024:g} reserved",
            f"{sm.shared_memory_bytes / 1024:g} KiB",
        ),
        "block slots": ("1", f"{sm.max_blocks}"),
        "launch bounds": ("1", f"{kernel.limits.get('launch bounds', '')}"),
    }
    return [
        {
            "resource": name,
            "a block takes": rows[name][0],
            "an SM has": rows[name][1],
            "room for": room,
            "": "limits" if name == kernel.limited_by else "",
        }
        for name, room in kernel.limits.items()
    ]


def verdict(found: Explanation) -> list[str]:
    """Sentences on the time, what bounds it, and what would have to change."""
    asked = found.prediction
    clock = [f"SM clock {cells(asked, 'SM clock')['SM clock']}."] if asked.clock_hz and asked.clock_by else []
    return [f"Time {timed_text(asked)}, {asked.trust.level}.", *clock, *bound_sentences(found)]


def _compared(found: Explanation) -> Iterator[Block]:
    """Time with its ratio, what bounds, and how long each unit is busy, before and after; nothing without a change."""
    before, after, ratio = found.unchanged, found.prediction, found.speedup
    if before is None:
        return
    text = f"{ratio} as fast" if ratio else "no ratio: one does not fit"
    columns = {"unchanged": _column(before), "changed": _column(after)}
    rows = [{"": name, **{head: one.get(name, "") for head, one in columns.items()}} for name in _column(after)]
    remarks = [f"{found.slower}\n"] if found.slower else []
    yield Table(f"Unchanged and changed: {text}", rows, whole=("", *columns), remarks=remarks)


def _column(one: Outcome) -> dict[str, object]:
    column = cells(one, "time", "90 % range", "bound", "SM clock")
    for unit, busy in one.units_s.items():
        share = busy / (one.time_s or 1.0)
        bar = "█" * round(BAR * min(1.0, share))
        column[unit.replace("_", " ")] = f"{bar:{BAR}} {100 * share:3.0f} %  {time_text(busy)}"
    return column


def timed_text(one: Outcome) -> str:
    """Time with its interval: "4.33 ms (90 % range 3.9-4.8)"."""
    return f"{time_text(one.time_s)} (90 % range {interval_text(one.time_low_s, one.time_high_s, one.time_s)})"


def bound_sentences(found: Explanation) -> list[str]:
    """Sentences on how long a call waits, what bounds it, and when another unit is as busy as the busiest."""
    one, turn = found.prediction, found.turn
    whole = one.time_s or 1.0
    waits, launches = (100 * (part or 0.0) / whole for part in (one.exposed_s, one.launch_s))
    lines = [
        f"Warpgroups wait for data {number(waits, 2)} % of the time on average; launches take {number(launches, 2)} %."
    ]
    lines += [
        f"{text[0].upper()}{text[1:]}." for text in (r.text for r in one.trust.reasons if r.kind in ("timing", "host"))
    ]
    lines.append(f"Bound by {found.bound.words}.")
    if turn is None:
        return [*lines, unturned(one.busiest), _best(found)]
    still = "still " if turn.busiest == turn.unit else ""
    return [
        *lines,
        busy_text(one.run.replay),
        f"{as_busy_text(turn.figure, turn.factor, turn.next_unit)} and the call takes "
        f"{time_text(turn.time_s)} ({times_text(turn.speedup)}); beyond that the busiest is {still}"
        f"{unit_text(turn.busiest)}.",
        _best(found),
    ]


def anew_sentences(found: Explanation) -> list[str]:
    """A line for each other tile that the implementation would choose on a GPU with such a figure."""
    tiles: dict[str, list[str]] = {}
    for lever in found.levers:
        if lever.anew:
            tiles.setdefault(lever.anew, []).append(f"{lever.figure} {times_text(lever.speedup_anew)}")
    return [f"All on the same tile; with it chosen anew, {tile}: {', '.join(each)}." for tile, each in tiles.items()]


def _best(found: Explanation) -> str:
    """The figure that gains most: not always that of the busiest unit, where work overlaps."""
    whole = [lever for lever in found.levers if lever.unit in ("clock", "SMs")]
    best = max((lever for lever in found.levers if lever not in whole), key=lambda lever: lever.speedup)
    if best.speedup < SAME:
        return "No single figure of the GPU makes the call faster."
    names = {"clock": "the clock", "SMs": "the SMs"}
    most = sorted((best, *whole), key=lambda lever: -lever.speedup)
    gains = (f"{names.get(lever.unit, lever.figure)} {times_text(lever.speedup)}" for lever in most)
    return f"Gains with one of them twice as good: {', '.join(gains)}."


def file_row(one: Answer[KernelQuestion], first: Answer[KernelQuestion]) -> dict[str, object]:
    """A prediction of a kernel file, over the first."""
    return {
        "gpu": one.machine,
        **cells(one, "time", "90 % range"),
        "vs first": str(one.speedup_over(first)),
        **cells(one, "busiest"),
        "HBM MB": wording.number((one.hbm_read_bytes + one.hbm_write_bytes) / 1e6),
        "blocks/SM": one.blocks_per_sm,
    }


def file_trust(found: Sequence[Answer[KernelQuestion]], more: Iterable[str] = ()) -> Remarks:
    """Level and range of predictions of a kernel file; why, and what `more` there is to say, where it is asked for."""
    trusts = [one.trust for one in found]
    spread = wording.spread_text(min(one.low for one in trusts), max(one.high for one in trusts))
    reasons = [f"trust: {reason}" for one in trusts for reason in one.reasons]
    return Remarks(f"{trusts[0].level}: {spread}. -v says why.", [*more, *reasons])


def file_explanation(found: KernelExplanation) -> Iterator[Block]:
    """An explanation of a kernel file."""
    asked = found.prediction
    yield f"{asked.implementation} on {asked.machine}\n"
    yield f"{found.loop_nest}\n"
    yield kernels_table(found.kernels)
    yield bytes_table(found.tensors)
    yield levers_table(found.levers, LEVERS, as_busy=True, bounded=found.turn is not None)
    if found.turn is not None:
        one = found.turn
        yield f"{one.figure} {one.factor:.2f}x: {one.next_unit.replace('_', ' ')} is as busy, {one.speedup:.2f}x"
    time, ranged = cells(asked, "time", "90 % range").values()
    yield f"Time {time} ({ranged}), bound by {found.bound.words}."
    yield file_trust([asked], ("Speedups are of replays, without a range.", COLUMNS))
