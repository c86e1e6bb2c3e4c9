"""The question above a table, and what its columns mean below it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from attnsim.errors import InputError
from attnsim.wording import and_text

if TYPE_CHECKING:
    from attnsim.models.question.workload import Workload


def heading(question: Workload, shown: Collection[str] = ()) -> str:
    """The question in words, window and patterns apart because only some algorithms have them."""
    plain = question.without_window()
    return str(plain) if plain == question else f"{plain}; {_players(question, shown)}: {question.mask}"


def _players(question: Workload, shown: Collection[str]) -> str:
    """Those of the algorithms shown that play the question's mask; the usual one where none is named."""
    from attnsim.models.mechanisms import only_for

    return and_text([name for name in only_for(question) if name in shown] or only_for(question)[:1])


def check_window(question: Workload, names: Sequence[str], window: int | None) -> None:
    """Refuse a window for mechanisms that play a pattern of their own in its place.

    Raises
    ------
    InputError
    """
    from attnsim.models.mechanisms import MECHANISMS, only_for

    patterned = [name for name in names if name in MECHANISMS and MECHANISMS[name].mask]
    if window and patterned and question.mask.is_band and question.mask.is_windowed:
        who = only_for(question)
        raise InputError(
            f"--window {window} is for {and_text(who)}, not for --algorithm {','.join(patterned)}; leave one out"
        )


def caption(question: Workload, over: Collection[str], shown: Collection[str] = (), retuned: bool = False) -> str:
    """How to read the table's columns; `over`: what its ratios are over."""
    from attnsim.api.comparing.baselines import UNCHANGED, UNFUSED
    from attnsim.models.mechanisms import find_mechanism, only_for

    meant = {
        UNFUSED: "unfused attention (torch.baddbmm) on the same GPU",
        UNCHANGED: f"the unchanged GPU on {'tiles chosen in the same way' if retuned else 'shipped tiles'}",
    }
    text = "".join(f"vs {name}: speedup over {meant.get(name, name)}. " for name in dict.fromkeys(over))
    text += "90 % range in brackets. " if over else ""
    text += "TFLOP/s: useful FLOPs (visible pairs only) over the time."
    if question.latent is not None and not all(find_mechanism(name).reads_latent for name in shown):
        text += " Only mla reads the latent; the others attend K and V of every head, cached so."
    if only_for(question):
        who, what = _players(question, shown), "window" if question.mask.is_band else "patterns"
        text += f" Only {who} {'have' if ' and ' in who else 'has'} the {what}; the others see all keys"
        text += " up to the query." if question.mask.is_causal else "."
    return text
