"""`attnsim algorithms` and `implementations`: what is computed, whose code runs it, on which GPUs."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from attnsim.api.libraries import TYPICAL, library_defaults
from attnsim.cli import options, show
from attnsim.cli.options import flag, switch
from attnsim.errors import InputError, nearest, shown
from attnsim.models.calibrations.calibration import calibrations
from attnsim.models.implementations.choose import IMPLEMENTATIONS
from attnsim.models.mechanisms import MECHANISMS
from attnsim.models.question.words import read_pass
from attnsim.reports.implementations import (
    able,
    implementations_text,
    libraries_tables,
    mechanism_records,
    mechanism_tables,
    of_call,
    record_of,
    runs,
)

USUAL = "a100-sxm4-80gb,h100-sxm5-80gb,b200-sxm-180gb"
"""GPUs that libraries are shown for, where none is named."""


def implementations(
    gpu: Annotated[str | None, flag("ID", "Only those that run on this GPU; several with --libraries.")] = None,
    passes: Annotated[str | None, flag("PASS", "Only those for fwd, bwd, fwd+bwd or decode.", "--pass")] = None,
    call: Annotated[str | None, flag("CALL", "Only those that a library's call, or a name, launches.", "--for")] = None,
    libraries: Annotated[bool, switch("What each library runs by default, by GPU and pass.", "--libraries")] = False,
    verbose: options.Verbose = False,
    json: options.Json = False,
) -> None:
    """Find the implementation behind a library's call, and say whose code it is."""
    passes = passes and read_pass(passes)
    if libraries:
        _print_libraries(gpu, passes, call, json)
        return
    found = of_call(call) if call else list(IMPLEMENTATIONS.values())
    found = able(found, gpu, passes)
    show.give(json, map(record_of, found), implementations_text(found, verbose, show.console().width))


def _print_libraries(gpu: str | None, passes: str | None, call: str | None, json: bool) -> None:
    """A table a pass of what libraries run, a column a GPU."""
    if call is not None:
        raise InputError(f"--for {call} and --libraries exclude each other; leave one out")
    if passes is not None and passes not in TYPICAL:
        raise InputError(f"pass is {shown(passes)}; {nearest(passes, TYPICAL)}")
    found = library_defaults(options.words([gpu or USUAL], "--gpu"), (passes,) if passes else tuple(TYPICAL))
    show.give(json, map(asdict, found), libraries_tables(found))


def algorithms(
    gpu: Annotated[str | None, flag("ID", "Only what runs on this GPU.")] = None,
    passes: Annotated[
        str | None, flag("PASS", "Only what has kernels for fwd, bwd, fwd+bwd or decode.", "--pass")
    ] = None,
    verbose: options.Verbose = False,
    json: options.Json = False,
) -> None:
    """List mechanisms, and with -v the implementations: whose code, on which GPUs, where calibrated."""
    records = able(list(IMPLEMENTATIONS.values()), gpu, passes and read_pass(passes))
    known = [item for item in MECHANISMS.values() if any(runs(one, item) for one in records)]
    calibrated: dict[str, list[str]] = {}
    for name, architecture in calibrations():
        calibrated.setdefault(name, []).append(architecture)
    blocks = mechanism_tables(records, known, calibrated, verbose)
    show.give(json, mechanism_records(records, known, calibrated), blocks)
