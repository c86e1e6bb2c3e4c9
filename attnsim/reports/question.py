"""One question for people: its algorithms on each GPU, as it is, changed and retuned, and what each table is over."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from attnsim.api import compare
from attnsim.api.answer import Answer, Outcome, plain
from attnsim.api.answering import compared
from attnsim.api.asking import Question, read_conditions
from attnsim.api.bounds import expect_bounds
from attnsim.api.comparing.baselines import Ratios, ratios_over, ratios_over_unchanged
from attnsim.api.comparing.ratios import LikeForLike
from attnsim.api.comparing.splitting import Split
from attnsim.api.comparing.splitting import split as shared_out
from attnsim.errors import InputError
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.choose import match
from attnsim.models.mechanisms import running
from attnsim.models.question.workload import Workload
from attnsim.reports.predictions import caption, heading, of_call, predicted, split_table, trusted, why_fastest
from attnsim.tables import Block


def ratios_of(group: Group, baseline: str | None, changed: bool, everything: list[Outcome]) -> list[Ratios]:
    """The ratios of a table: over the unchanged GPU where there is one, and over what was named or is usual."""
    found = [ratios_over_unchanged(group.predictions, group.unchanged)] if group.unchanged else []
    if group.predictions and (baseline or not changed):
        found.append(ratios_over(group.predictions, baseline, everything))
    return found


@dataclass(frozen=True)
class Group:
    """The predictions that share a table, and those on the unchanged GPU to hold against them.

    Where tiles do not fit there are none, and `refusal` says why; where they are the `same` as in the table before,
    they are not printed again. Retuned ones are held `alike`, against the unchanged GPU on retuned tiles.
    """

    title: str
    predictions: list[Outcome]
    unchanged: list[Outcome]
    refusal: str = ""
    same: bool = False
    refused: Mapping[str, str] = field(default_factory=dict)
    alike: Sequence[LikeForLike[Outcome]] = ()


@dataclass(frozen=True)
class Asked:
    """The flags that stay the same from GPU to GPU."""

    names: list[str]
    implementations: list[str]
    tile: str | None
    conditions: dict[str, Any]
    refused: Mapping[str, Mapping[str, str]]

    def groups(self, question: Workload, base: Gpu, machine: Gpu, ways: list[str]) -> list[Group]:
        """Tables for one GPU: as it is, and changed in each of the `ways` to choose tiles."""
        expect_bounds()
        if machine is base:
            why = self.refused[base.base_id]
            return [Group(f"{base.id}{_way(way)}", self.answers(question, base, way), [], refused=why) for way in ways]
        unchanged, refusal = [], ""
        try:
            unchanged = self.answers(question, base, "shipped")
        except InputError as error:
            refusal = str(error)  # a number format that only the changed GPU has
        found = [Group(f"{base.id}, unchanged", unchanged, [], refusal)]
        settings = "; ".join(str(one) for one in machine.changes if one not in base.changes)
        for number, way in enumerate(ways):
            title = f"the same changes, {way} tiles" if number else f"{base.id} with {settings}; {way} tiles"
            try:
                answers = self.answers(question, machine, way)
                same = number > 0 and all(item.tiles == "shipped" for item in answers)
                title = "the same changes: no other tiles are faster" if same else title
                alike = () if same or way == "shipped" else self.alike(question, base, unchanged, answers)
                before = [one.retuned for one in alike] or unchanged
                why = self.refused[base.base_id]
                found.append(Group(title, answers, before, same=same, refused=why, alike=alike))
            except InputError as error:
                if way == ways[-1]:
                    raise
                found.append(Group(title, [], [], str(error)))  # other tiles may fit
        return found

    def alike(
        self, question: Workload, base: Gpu, unchanged: list[Outcome], answers: list[Outcome]
    ) -> list[LikeForLike[Outcome]]:
        """Each answer on retuned tiles beside those on the unchanged GPU; none where that has no answer."""
        if not unchanged:
            return []
        retuned = self.answers(question, base, "retuned")
        return [LikeForLike(*three) for three in zip(unchanged, retuned, answers, strict=True)]

    def answers(self, question: Workload, gpu: Gpu, way: str) -> list[Outcome]:
        """The algorithms and implementations that can answer."""
        able = [name for name in self.implementations if name not in self.refused[gpu.base_id]]
        names = [name for name in _of(able, self.names, self.implementations) if name not in self.refused[gpu.base_id]]
        if not names:
            return []
        return compare(
            question,
            gpu,
            names,
            implementation=able,
            tiles=way,
            tile=self.tile,
            **self.conditions,
        )

    def splits(self, question: Workload, machine: Gpu, way: str) -> list[Split[Answer[Question]]]:
        """The gain of each change, for every algorithm that fits the memory."""
        conditions = {key: value for key, value in self.conditions.items() if key != "progress"}
        return [
            shared_out(
                one.workload,
                machine,
                one.algorithm,
                implementation=one.implementation,
                tiles=way if one.tiles != "given" else "shipped",
                tile=self.tile if one.tiles == "given" else None,
                **conditions,
            )
            for one in self.answers(question, machine, way)
            if one.fits
        ]


def _way(way: str) -> str:
    return "" if way == "shipped" else f", {way} tiles"


def records(groups: Sequence[Group], over: Sequence[Sequence[Ratios]], asked: Asked) -> Iterator[dict[str, object]]:
    """Every answer of the tables, and every name that has none on a GPU, as plain types."""
    for group, ratios in zip(groups, over, strict=True):
        for place, item in enumerate(() if group.same else group.predictions):
            found = {one.over: one.ratios[place] for one in ratios}
            yield (
                item.to_dict()
                | {"bound": plain(item.bound)}
                | {"ratios": {name: ratio and ratio.to_dict() for name, ratio in found.items()}}
                | ({"like_for_like": group.alike[place].to_dict()} if group.alike else {})
            )
    for machine, why in asked.refused.items():
        for name, reason in why.items():
            kind = "algorithm" if name in asked.names else "implementation"
            yield {kind: name, "gpu": machine, "time_s": None, "error": reason}


def blocks(
    question: Workload,
    groups: list[Group],
    over: list[list[Ratios]],
    model: str,
    splits: list[Split[Answer[Question]]],
    verbose: bool,
) -> Iterator[Block]:
    """The tables, what is above them, and how far to trust them."""
    names = [item.algorithm for group in groups for item in group.predictions]
    yield f"{model}{heading(question, names)}\n"
    for group, columns in zip(groups, over, strict=True):
        if group.refusal or group.same:
            yield "\n".join(filter(None, (group.title, group.refusal))) + "\n"
            continue
        yield predicted(group.title, group.predictions, columns, verbose, group.refused)
        yield from why_fastest(group.predictions)
        for one in group.alike:
            if one.changed.tiles == "retuned":
                yield f"{one.changed.algorithm}: {one.sentence}.\n"
    for split_up in splits:
        yield split_table(split_up, of_call(split_up.changed))
    shown = [one for columns in over for one in columns if any(one.ratios)]
    yield from dict.fromkeys(one.note for one in shown if one.note)
    everything = [item for group in groups if not group.same for item in group.predictions]
    alike = any(group.alike for group in groups)
    details = [caption(question, [one.over for one in shown], names, retuned=alike)]
    yield from trusted(everything, verbose, details)


def run_by(implementations: list[str]) -> tuple[str, ...]:
    """The algorithm of each implementation that is none of the usual two; of those that are known."""
    found = []
    for name in implementations:
        with suppress(InputError):
            found.append(running(match(name).record)[0].name)
    return tuple(found)


def _of(able: list[str], names: list[str], wanted: list[str]) -> list[str]:
    """The algorithms without those that only other implementations than these run."""
    theirs = {*run_by([name for name in wanted if name not in able])} - {*run_by(able)}
    return [name for name in names if name not in theirs]


def refusals(
    question: Workload, gpus: list[Gpu], names: list[str], wanted: list[str], usual: bool
) -> dict[str, dict[str, str]]:
    """Why implementations, or the usual algorithms, cannot answer, by GPU, where another can or does on another GPU.

    Where none can, the first says why.
    """

    def why_not(gpu: Gpu, algorithms: list[str], own: list[str]) -> str:
        try:
            compared(question, gpu, algorithms, own, read_conditions())
        except InputError as error:
            return str(error)
        return ""

    found: dict[str, dict[str, str]] = {gpu.base_id: {} for gpu in gpus}
    asked = {name: (_of([name], names, wanted), [name]) for name in wanted}
    asked = asked or {name: ([name], list[str]()) for name in names if usual}
    if len(asked) * len(gpus) < 2:
        return found
    for gpu in gpus:
        if wanted or why_not(gpu, names, []):  # together they may be asked what one of them alone is not
            reasons = {name: why_not(gpu, *how) for name, how in asked.items()}
            found[gpu.base_id] = {name: reason for name, reason in reasons.items() if reason}
    if all(len(reasons) == len(asked) for reasons in found.values()):
        raise InputError(next(iter(found[gpus[0].base_id].values())))
    return found
