"""`attnsim doctor`: what works on this machine, and the command for what does not."""

from __future__ import annotations

import dataclasses

from attnsim.cli import options, progress, show


def doctor(json: options.Json = False) -> None:
    """Say what of packages, compiler, interpreter, driver, GPU and profiler works here, and how to mend the rest."""
    from attnsim.kernels.gpu.environment import examine

    with progress.busy("examining"):
        findings = list(examine())
    if json:
        show.print_json(dataclasses.asdict(one) for one in findings)
        return
    out = show.console()
    rows = [{"part": one.what, "state": one.status, "found": one.found} for one in findings]
    show.print_rows(out, "", rows)
    broken = [one for one in findings if one.status == "missing"]
    for one in broken:
        out.print(f"{one.what}: {one.fix}", soft_wrap=True)
    if not broken:
        out.print("nothing needs mending")
