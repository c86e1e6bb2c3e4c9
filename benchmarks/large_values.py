"""Every command with large values: `python benchmarks/large_values.py [--draws 200] [--seed 0]`.

A command takes less than 2 GiB of memory and 60 s of a core, or is refused in one line within 2 s. Each draw runs in a
process of its own; what breaks this is printed, and the command ends with 1. Commands that name no size are left out,
and `explore`, `fit` and `demo`: a server, and work that is asked for as a whole.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
MEMORY_BYTES, TIME_S, REFUSED_S = 2 << 30, 60, 2
STARTING_S = 1.5
"""Of a core, on top of the time of a refusal: Python, NumPy and the command itself."""

FILL = """.version 8.0
.target sm_80
.address_size 64
.visible .entry fill(.param .u64 s)
{
    .reg .b64 %a<3>; .reg .b32 %r<1>; .reg .f32 %f<1>;
    ld.param.u64 %a0, [s];
    mov.u32 %r0, %tid.x;
    mul.wide.u32 %a1, %r0, 4;
    add.s64 %a2, %a0, %a1;
    mov.f32 %f0, 0f3F800000;
    st.global.f32 [%a2], %f0;
    ret;
}
"""

MASKS = (
    "random 50 % x64", "random 40x64", "random 1000x1", "random 3x1", "global 1000000", "block window 1000x1",
    "causal, window 100000, global 16", "dilated 48 step 3", "strided 7", "prefix 100000",
)  # fmt: skip
LARGE = {
    "--seq": ("1M", "16M", "128M"), "--seq-kv": ("128M",), "--batch": ("1M",), "--heads": ("65536",),
    "--kv-heads": ("1",), "--head-dim": ("1024",), "--head-dim-v": ("1024",), "--window": ("1M",), "--mask": MASKS,
    "--lengths": ("1:128M x 1M", "1M:1M x 1k"), "--page-size": ("1", "1M"), "--prefix": ("1M",), "--block": ("1", "1M"),
    "--selection": ("top 1024x64, compress 32 step 16, window 1M",), "--set": ("sm.count=100000",),
    "--mode": ("exact",), "--budget": ("1M", "1000M"), "--sobol": ("4194304", "1024"), "--points": ("100000", "1M"),
    "--top": ("1M",), "--sms": ("16", "1M"), "--tokens": ("1M",), "--stride": ("1M",), "--minutes": ("1e9",),
    "--sample": ("1M",), "--rows": ("1M",), "--grid": ("1000000", "65536,65535,65535"),
    "--arg": ("s=fp32[1000000,100000]", "s=fp32[1024]"), "--shared": ("1G", "200000"), "--jobs": ("1M",),
}  # fmt: skip
"""Large values of flags, in the words of the command line."""

USUAL = {"--gpu": "h100", "--heads": "2", "--head-dim": "64", "--seq": "1k"}
"""Of flags that most commands need and that are not drawn."""

FURTHER: Mapping[str, tuple[str, ...]] = {
    "predict": ("--algorithm sparse", "--algorithm naive", "", "--pass bwd", "--pass decode"),
    "explain": ("flash", "sparse", "naive"),
    "breakeven": ("", "--pattern window"),
    "sensitivity": ("",),
    "roofline": ("--out {}/roofline.png",),
    "trace": ("--out {}/trace.json", "--picture {}/trace.png"),
    "plot units": ("--out {}/units.png",),
    "plot traffic": ("--out {}/traffic.png",),
    "plot tornado": ("--out {}/tornado.png",),
    "plot density": ("--out {}/density.png",),
    "search tile": ("",),
    "search hardware": ("--vary hbm.bandwidth=1TB/s:9TB/s",),
    "measure": ("--out {}/measured",),
    "validate": ("--hypothetical",),
    "accuracy": ("--plot {}/errors.png",),
    "kernels run": ("flash --cpu", "naive --cpu", "linear --cpu", "decode --cpu", "--ptx {}/fill.ptx --block 256"),
    "kernels trace": ("flash", "--ptx {}/fill.ptx --block 256 --registers 16"),
}
"""Ways to ask each command, beside sizes; {} is a folder that may be written to."""


def lines(draws: int, seed: int, folder: str) -> Iterator[str]:
    """So many command lines, every command in turn."""
    from typer.main import get_command

    from attnsim.cli.app import app
    from attnsim.cli.help import commands

    (Path(folder) / "fill.ptx").write_text(FILL, encoding="utf-8")
    flags = {path: [one.opts[0] for one in command.params] for path, command in commands(get_command(app))}
    chance = random.Random(seed)
    for number in range(draws):
        path = list(FURTHER)[number % len(FURTHER)]
        further = chance.choice(FURTHER[path]).format(folder)
        foreign, own = ("--grid", "--arg", "--shared"), path.startswith("kernels")
        known = [one for one in flags[path] if not own or (one in foreign) == ("--ptx" in further)]
        large = [one for one in known if one in LARGE]
        drawn = {one: chance.choice(LARGE[one]) for one in chance.sample(large, min(len(large), chance.randint(1, 2)))}
        usual = {} if own else {one: value for one, value in USUAL.items() if one in known}
        needed = {"--grid": "1", "--arg": "s=fp32[256]"} if "--ptx" in further else {}
        asked = {**usual, **needed, **drawn}
        yield shlex.join([*path.split(), *shlex.split(further), *(word for pair in asked.items() for word in pair)])


def wrong(line: str, folder: str) -> str:
    """What a command line took that it may not; empty where it took no such thing."""
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "attnsim", *shlex.split(line)]
    with subprocess.Popen(
        command, cwd=folder, text=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment
    ) as process:
        resource.prlimit(process.pid, resource.RLIMIT_AS, (4 * MEMORY_BYTES, 4 * MEMORY_BYTES))
        resource.prlimit(process.pid, resource.RLIMIT_CPU, (TIME_S + 5, TIME_S + 5))
        assert process.stderr is not None
        told = [one for one in process.stderr.read().splitlines() if not one.startswith("note: ")]
        _, status, used = os.wait4(process.pid, 0)
        code = process.returncode = os.waitstatus_to_exitcode(status)
    time_s, memory_bytes = used.ru_utime + used.ru_stime, used.ru_maxrss << 10
    taken = f"code {code}, {time_s:.1f} s, {memory_bytes / 2**30:.2f} GiB: {told[-1] if told else ''}"
    if code == 0:
        return "" if time_s < TIME_S and memory_bytes < MEMORY_BYTES else taken
    return "" if code in (1, 2) and len(told) == 1 and time_s < REFUSED_S + STARTING_S else taken


def main() -> int:
    """Run them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    faults = 0
    with tempfile.TemporaryDirectory() as folder:
        for line in lines(given.draws, given.seed, folder):
            found = wrong(line, folder)
            faults += bool(found)
            if found:
                print(f"attnsim {line}\n  {found}", flush=True)
    print(f"{given.draws} command lines, {faults} out of bounds")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
