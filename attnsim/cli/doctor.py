"""`attnsim doctor`: what works on this machine, and the command for what does not."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from importlib.util import find_spec

from attnsim.cli import options, progress, show
from attnsim.kernels.gpu.environment import Finding, examine, one_line
from attnsim.models.calibrations.choose import choose
from attnsim.models.hardware.files import load_gpu
from attnsim.models.implementations.choose import find_implementation
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.schedule import Kernel
from attnsim.simulator import players
from attnsim.simulator.program import Program, prepare
from attnsim.tables import Block, Table, Unfolded


def doctor(json: options.Json = False) -> None:
    """Check packages, player, compiler, interpreter, driver, GPU and profiler, and say how to mend what is broken."""
    with progress.busy("examining"):
        packages, *others = examine()
        findings = [packages, player(), *others]
    show.give(json, map(dataclasses.asdict, findings), _blocks(findings))


def _blocks(findings: Sequence[Finding]) -> Iterator[Block]:
    yield Table("", [{"part": one.what, "state": one.status, "found": one.found} for one in findings])
    broken: list[Block] = [Unfolded(f"{one.what}: {one.fix}") for one in findings if one.status == "missing"]
    yield from broken or ["nothing needs mending"]


SLOWER = "the same answers, some thirty times slower"


def player() -> Finding:
    """Find the player of long replays; compile it where that was not done yet, and compare it with SimPy."""
    if find_spec("numba") is None:
        return Finding("player", "missing", f"SimPy: numba is not installed; {SLOWER}", "pip install numba")
    began = time.perf_counter()
    try:
        from attnsim.simulator import compiled, twin
    except (ImportError, OSError) as error:  # a numba that does not know this Python or NumPy, or cannot load LLVM
        fix = "unset NUMBA_DISABLE_JIT" if os.environ.get("NUMBA_DISABLE_JIT") else "pip install --upgrade numba"
        return Finding("player", "missing", f"SimPy: {one_line(error)}; {SLOWER}", fix)

    work = example()
    time_ps = twin.play(*work).time
    took = time.perf_counter() - began
    if time_ps != players.by_simpy(*work).time:
        return Finding(
            "player", "missing", "the compiled twin and SimPy do not agree", "report it; pip uninstall numba"
        )
    stats = compiled.advance.stats
    first = f"SimPy for the first {players.PLAYED_BY_SIMPY:,} executions of a process"
    player_text = f"{first}, then the compiled twin, numba {version('numba')}, which agrees with it; "
    if stats.cache_path is None:
        fix = "set NUMBA_CACHE_DIR to a folder that may be written, so that it is compiled once"
        return Finding("player", "missing", f"{player_text}compiled in {took:.1f} s, and anew by every process", fix)
    how = "loaded" if stats.cache_hits else "compiled just now, for the first time,"
    return Finding("player", "ok", f"{player_text}{how} in {took:.1f} s")


def example() -> tuple[Kernel, Program, int, int]:
    """A kernel that SimPy plays in some milliseconds, on so many SMs, with so many residents."""
    gpu, record = load_gpu("a100-sxm4-80gb"), find_implementation("flash-attn.2")
    schedule = record.build(Workload(1, 4, 512, 64), gpu, None)
    item = prepare(schedule, gpu, choose(record, gpu).numbers, "warm")[0]
    return item.kernel, item.compiled(), gpu.sm.count, item.fit.blocks_per_sm
