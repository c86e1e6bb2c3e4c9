"""Write docs/mechanisms: one MyST page a mechanism, from its record and its page, and an index.

`python benchmarks/mechanism_pages.py` rewrites the pages and removes those of mechanisms that are no more; with
`--check` it changes nothing and fails if a page is out of date. Costs are sums over the schedule, so that a page
depends on shapes and tiles alone, not on calibrations.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from attnsim.api.asking import ask
from attnsim.errors import InputError
from attnsim.models.hardware.files import load_gpu
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.mechanisms import MECHANISMS, Mechanism
from attnsim.models.schedule.schedule import Schedule

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "mechanisms"
GPUS = ("a100-sxm4-80gb", "h100-sxm5-80gb", "b200-sxm-180gb")
"""An example is shown on the first that runs it."""
GROUPS = {
    "sharing": "Who shares keys and values",
    "dense": "Dense attention",
    "sparse": "Pairs left out",
    "linear": "Without a softmax over the keys",
}


def pages() -> dict[str, str]:
    """File name and text of every page, the index first."""
    return {"index.md": index()} | {f"{name}.md": page(record) for name, record in MECHANISMS.items()}


def index() -> str:
    """The mechanisms by group, one line each."""
    lines = [
        "# Mechanisms",
        "",
        "What each attention computes, what it costs, how a GPU runs it, when it wins. Written by",
        "`python benchmarks/mechanism_pages.py` from the records and pages of `attnsim/models/mechanisms`.",
        "",
    ]
    for group, title in GROUPS.items():
        records = [record for record in MECHANISMS.values() if record.group == group]
        if records:
            lines += [f"## {title}", "", "| mechanism | what it is |", "|---|---|"]
            lines += [f"| [{record.page.title}]({record.name}.md) | {record.page.summary} |" for record in records]
            lines.append("")
    lines += ["```{toctree}", ":hidden:", "", *sorted(MECHANISMS), "```", ""]
    return "\n".join(lines)


def page(record: Mechanism) -> str:
    """One mechanism: definition, when it wins, cost and schedule of its example, sources."""
    lines = [f"# {record.page.title}", "", f"`{record.name}`: {record.page.summary}.", ""]
    if not record.exact:
        lines += ["Not softmax attention: another function of the same inputs, whose error is reported beside it.", ""]
    lines += ["## Definition", "", record.page.definition, "", "## When it wins", "", record.page.wins, ""]
    shown = _schedule(record)
    if shown is not None:
        lines += _example(record, *shown)
    lines += ["## Sources", "", *(f"- {source}" for source in record.page.sources), ""]
    return "\n".join(lines)


def _schedule(record: Mechanism) -> tuple[Gpu, Schedule] | None:
    """The schedule of the record's example on the first GPU that runs it, None where it has no kernels."""
    if not record.implementations:
        return None
    for name in GPUS:
        gpu = load_gpu(name)
        try:
            implementation = ask(record.example, gpu, record).record
            return gpu, implementation.build(record.example, gpu, None)
        except InputError:
            continue
    raise LookupError(f"none of {', '.join(GPUS)} runs the example of {record.name}: {record.example}")


def _example(record: Mechanism, gpu: Gpu, schedule: Schedule) -> Iterator[str]:
    yield from ("## Cost of an example", "", f"{record.example}; {schedule.implementation} on {gpu.id}.", "")
    yield from _table(("quantity", "count"), _quantities(record, schedule))
    yield from ("Bytes asked of global memory:", "")
    yield from _table(
        ("kernel", "tensor", "", "bytes"),
        [(kernel, tensor, kind, f"{size:,}") for (kernel, kind, tensor), size in schedule.requested().items()],
    )
    yield from ("## Schedule", "", "```text", str(schedule), "```", "")
    yield from (
        f"`attnsim explain {record.name} --gpu {gpu.id}` adds what limits occupancy, HBM bytes and what bounds it.",
        "",
    )


def _quantities(record: Mechanism, schedule: Schedule) -> list[tuple[str, str]]:
    useful = record.useful(record.example)
    return [
        ("useful FLOPs (visible pairs)", f"{useful.flops:,}"),
        ("executed FLOPs (whole tiles, recomputation)", f"{schedule.total('flops'):,}"),
        ("dense FLOPs (all pairs)", f"{useful.dense:,}"),
        ("exponentials", f"{schedule.total('exps'):,}"),
        ("HBM bytes with perfect reuse", f"{sum(schedule.compulsory().values()):,}"),
        ("HBM bytes without reuse", f"{sum(schedule.requested().values()):,}"),
        ("shared-memory bytes of GEMM operands", f"{schedule.total('smem_bytes'):,}"),
        ("peak memory, bytes", f"{schedule.peak_memory_bytes:,}"),
    ]


def _table(heads: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    yield f"| {' | '.join(heads)} |"
    yield f"|{'---|' * (len(heads) - 1)}---:|"
    for row in rows:
        yield f"| {' | '.join(row)} |"
    yield ""


def stale() -> list[str]:
    """Names of pages that differ from the registry, are missing, or belong to no mechanism."""
    wanted = pages()
    there = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.md")}
    return sorted(name for name in wanted.keys() | there.keys() if wanted.get(name) != there.get(name))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing, fail if a page is out of date")
    check = parser.parse_args().check
    names = stale()
    wanted = pages()
    for name in names:
        print(f"docs/mechanisms/{name} {'is out of date' if check else 'refreshed' if name in wanted else 'removed'}")
        if check:
            continue
        FOLDER.mkdir(exist_ok=True)
        if name in wanted:
            (FOLDER / name).write_text(wanted[name], encoding="utf-8")
        else:
            (FOLDER / name).unlink()
    return int(check and bool(names))


if __name__ == "__main__":
    sys.exit(main())
