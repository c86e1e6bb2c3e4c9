"""`attnsim accuracy --sources`: errors on sources that no fit has seen, and what ranges are made of."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from attnsim.cli import show
from attnsim.cli.progress import busy

if TYPE_CHECKING:
    from rich.console import Console


def print_sources(json: bool) -> None:
    """Print the report, or its lines as one JSON list, each with its `kind`."""
    from attnsim.validation.checking.sources import sources_report
    from attnsim.validation.measured import aiconfigurator

    with busy("predicting"):
        found = sources_report()
    if json:
        show.print_json([{"kind": kind, **row} for kind, rows in found.items() for row in rows])
        if told := aiconfigurator.missing():
            print(told, file=sys.stderr)
        return
    out = show.console()
    show.print_rows(out, "Errors away from home: sources that their calibration has not seen", _shown(found["total"]))
    show.print_groups(out, "By source and GPU", _shown(found["source"]), ("laboratory", "source"))
    show.print_rows(
        out, "Components of ranges: standard deviations and half-widths of log time, in percent",
        [_component(row) for row in found["component"]],
    )  # fmt: skip
    out.print(
        "needed: the half-width that holds 90 % of the rows whose farthest component it is; of it: the stated one over "
        "it; held: rows inside with their laboratory, and with their chip, left out of the widths.\n"
    )
    _print_ratios(out, found)
    if found["refused"]:
        show.print_groups(out, "Rows without a prediction", found["refused"], ("source", "why"))
    if told := aiconfigurator.missing():
        out.print(told)


def _print_ratios(out: Console, found: dict[str, list[dict[str, Any]]]) -> None:
    """The ranges of ratios: their components, and what they hold pair by pair."""
    title = "Ranges of ratios, one kernel on two GPUs: standard deviations and half-widths of log ratio, in percent"
    show.print_rows(out, title, [_ratio(row) for row in found["ratio"]])
    show.print_rows(
        out, "By pair of GPUs, with the pair left out of the widths", [_ratio(row) for row in found["pair"]]
    )
    show.print_rows(
        out, "Two kernels on one GPU, with the laboratory left out of the widths",
        [_ratio(row) for row in found["kernels"]],
    )  # fmt: skip
    out.print(
        "numbers: each GPU's own, or the older one's carried over to the newer one's datasheet; speedup, error and "
        "half-width are medians; held: steps inside the stated range. change: times how far it moves the call.\n"
    )


def _ratio(row: dict[str, Any]) -> dict[str, Any]:
    """A line with its shares in percent."""
    shares = {"sd": "in trust", "error": "error", "half_width": "half-width", "held": "held"}
    texts = {shares[name]: "" if row[name] is None else f"{100 * row[name]:.1f}" for name in shares.keys() & row.keys()}
    texts |= {"speedup": show.times_text(row["ratio"])} if "ratio" in row else {}
    names = {"ratio": "speedup", **shares}
    return {name: texts.get(name, row.get(key)) for key in row for name in [names.get(key, key)]}


def _shown(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows with their shares in percent."""
    shares = ("mean", "median", "bias", "held")
    return [
        {key: show.share_text(value, signed=key == "bias") if key in shares else value for key, value in row.items()}
        for row in rows
    ]


def _component(row: dict[str, Any]) -> dict[str, Any]:
    def percent(name: str) -> str:
        return "" if row[name] is None else f"{100 * row[name]:.1f}"

    return {
        "component": row["component"], "sources": row["sources"], "labs": row["laboratories"], "groups": row["groups"],
        "within": percent("within"), "in trust": percent("sd"),
        "half-width": percent("half_width"), "needed": percent("needed"),
        "of it": "" if row["ratio"] is None else f"{row['ratio']:.2f}",
        "held": percent("held"), "chip": percent("held_chip"),
    }  # fmt: skip
