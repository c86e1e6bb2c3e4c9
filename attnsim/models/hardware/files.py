"""Reading and writing GPU files: the built-in ones under `gpus/`, and users' own."""

from __future__ import annotations

import dataclasses
import functools
import json
import warnings
from collections.abc import Iterable
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

from attnsim.errors import InputError, Taken, nearest, shown
from attnsim.files import shipped
from attnsim.models.hardware.architectures import architecture_of
from attnsim.models.hardware.attached import gpu_of_name
from attnsim.models.hardware.file_format import GpuFile, read_document
from attnsim.models.hardware.gpu import Change, Gpu, inconsistency
from attnsim.models.hardware.names import VARIANTS, called, named, unknown, usual
from attnsim.models.hardware.rules import REQUIRED, gpu_of_figures, with_rules
from attnsim.models.hardware.sections import FIELDS, SECTIONS, Figure, field_of, show

_builtin_paths = functools.partial(shipped, Path(__file__).parent / "gpus")


def builtin_gpu_ids() -> list[str]:
    """Ids of the GPUs that come with attnsim, sorted."""
    return sorted(_builtin_paths())


def known_gpu_ids() -> list[str]:
    """Ids of the built-in GPUs, followed by their variants: cards that differ from a GPU in a few figures."""
    return [*builtin_gpu_ids(), *VARIANTS]


def load_gpu(name_or_path: str | Path) -> Gpu:
    """Load a GPU by its built-in id, by another of its names, or from a YAML file.

    Parameters
    ----------
    name_or_path
        - "h100-sxm5-80gb": a built-in id;
        - a path that ends in .yaml or .yml;
        - "NVIDIA H100 80GB HBM3": the driver's name;
        - "h100": a common name. Of several boards the SXM one with the most memory is taken, and a warning
          (:class:`attnsim.errors.Taken`) says so.

    Raises
    ------
    InputError
        If the id is unknown (names the nearest), or the file is wrong, in one line.
    """
    if not isinstance(name_or_path, (str, Path)):
        raise InputError(f"gpu is {shown(name_or_path)}; give an id such as 'h100-sxm5-80gb', a path or a Gpu")
    name_or_path = str(name_or_path)
    if _known(name_or_path):
        return _load_builtin(name_or_path)
    if name_or_path.lower().endswith((".yaml", ".yml")):
        return _load(Path(name_or_path), ())
    if "," in name_or_path:
        raise InputError(f"{shown(name_or_path)} names several GPUs and one is asked for; give one of them alone")
    gpu, *others = gpus_called(name_or_path)
    if others:
        names = ", ".join(one.id for one in others)
        warnings.warn(f"{name_or_path} taken as {gpu.id}; others: {names}", Taken, stacklevel=2)
    return gpu


def gpus_called(name: str) -> list[Gpu]:
    """GPUs and variants that a name may mean, the most common one first.

    Raises
    ------
    InputError
        If there is none: with the reason, or the nearest names.
    """
    everything = known_gpu_ids()
    if listed := called(name, everything):
        return list(map(_load_builtin, listed))
    for ids in (_builtin_paths(), everything):
        if found := named(name, ids):
            first = max(map(_load_builtin, usual(found)), key=lambda one: one.hbm.capacity_bytes)
            return [first, *(_load_builtin(one) for one in found if one != first.id)]
        if driven := gpu_of_name(name, map(_load_builtin, ids)):
            return [driven]
    raise unknown(name, everything)


@functools.lru_cache(maxsize=256)
def _load_builtin(name: str) -> Gpu:
    variant = VARIANTS.get(name)
    return variant.of(_load_builtin(variant.extends)) if variant else _load(_builtin_paths()[name], ())


def _known(name: str) -> bool:
    return name in _builtin_paths() or name in VARIANTS


def _load(path: Path, trail: tuple[Path, ...]) -> Gpu:
    resolved = path.resolve()
    if resolved in trail:
        loop = " -> ".join(step.name for step in (*trail[trail.index(resolved) :], resolved))
        raise InputError(f"{path.name}: extends goes round in a circle ({loop}); let one of them stand alone")
    document = read_document(path)
    gpu_id = document.get("id", path.stem.lower())
    figures = _figures(path.name, document)
    if "extends" in document:
        return _derived(path, gpu_id, document, figures, (*trail, resolved))
    gpu = _whole(path.name, gpu_id, document, figures)
    builtin = _builtin_paths().get(gpu_id, path)
    shadows = gpu_id in VARIANTS or builtin.resolve() != resolved
    if _known(gpu_id) and shadows and gpu != _load_builtin(gpu_id):
        # Calibrations are keyed by id: a different machine with this id would be trusted as if measured.
        raise InputError(f"{path.name}: id {gpu_id!r} is a built-in GPU's with other figures; give it an id of its own")
    return gpu


def _figures(file: str, document: dict[str, Any]) -> dict[str, Figure]:
    """Figures that a file states, checked against their units and ranges."""
    found: dict[str, Figure] = {}
    for section in SECTIONS:
        for name, entry in document.get(section, {}).items():
            key = f"{section}.{name}"
            field, given = FIELDS[key], entry["value"]
            try:
                value = field.parse(_as_written(given))
            except InputError as error:
                raise InputError(f"{file}: {key} {error}") from None
            found[key] = Figure(value, field.unit, entry["kind"], entry["source"])
    return found


def _whole(file: str, gpu_id: str, document: dict[str, Any], figures: dict[str, Figure]) -> Gpu:
    """GPU from a file without `extends`; missing figures follow by rule."""
    for name in ("name", "compute_capability"):
        if name not in document:
            raise InputError(f"{file}: {name} is missing; add it, or 'extends: h100-sxm5-80gb' to start from a GPU")
    base_id, changes = document.get("base_id", gpu_id), document.get("changes", ())
    for sentence in filter(lambda one: isinstance(one, str), changes):
        raise InputError(f"{file}: changes: {shown(sentence)}; write {{figure: sm.count, value: 160, was: 132}}")
    if base_id != gpu_id and _known(base_id):
        raise InputError(f"{file}: base_id is the built-in {base_id!r}; write 'extends: {base_id}' instead")
    capability = int(document["compute_capability"].replace(".", ""))
    name = architecture_of(capability).name
    if document.get("architecture", name) != name:
        raise InputError(
            f"{file}: architecture is {document['architecture']!r}; compute capability "
            f"{document['compute_capability']} is {name}; correct one of them"
        )
    for key in REQUIRED:
        if key not in figures:
            raise InputError(f"{file}: {key} is missing; allowed: {FIELDS[key].allowed()}; add it with kind and source")
    if not {"clock.boost", "clock.tensor"} & figures.keys():
        raise InputError(f"{file}: clock.boost is missing; allowed: {FIELDS['clock.boost'].allowed()}; add it")
    try:
        figures = with_rules(capability, document.get("memory", ""), figures)
    except InputError as error:
        raise InputError(f"{file}: {error}") from None
    gpu = gpu_of_figures(
        gpu_id,
        document["name"],
        document["compute_capability"],
        figures,
        changes=_recorded(file, changes),
        base_id=base_id,
    )
    return _consistent(file, gpu)


def _derived(
    path: Path, gpu_id: str, document: dict[str, Any], figures: dict[str, Figure], trail: tuple[Path, ...]
) -> Gpu:
    """GPU from a file that extends another: the given figures, and those that follow them."""
    base = _base(path, document["extends"], trail)
    for name in ("architecture", "compute_capability"):
        if document.get(name, getattr(base, name)) != getattr(base, name):
            raise InputError(
                f"{path.name}: {name} is {document[name]!r} but {base.id} has {getattr(base, name)!r}; "
                "extend a GPU of that architecture, or write a file without extends"
            )
    gpu = base
    for key, figure in figures.items():
        if figure.value == gpu.get(key):
            continue
        try:
            gpu = gpu.with_change(key, figure.value, keep=figures)
        except InputError as error:
            raise InputError(f"{path.name}: {error}") from None
    changes = gpu.changes[len(base.changes) :]
    recorded = _recorded(path.name, document.get("changes", ()))
    if _keys(changes) <= _keys(recorded):
        changes = recorded  # the file's own record, unless it leaves a change out
    gpu = dataclasses.replace(
        gpu,
        id=gpu_id,
        name=document.get("name", base.name),
        base_id=base.base_id,
        changes=(*base.changes, *changes),
        provenance=MappingProxyType({**gpu.provenance, **figures}),
    )
    return _consistent(path.name, gpu)


def _recorded(file: str, entries: Iterable[Any]) -> tuple[Change, ...]:
    """Changes recorded in a file; sentences, which are for people, are skipped."""
    return tuple(_change(file, entry) for entry in entries if not isinstance(entry, str))


def _change(file: str, entry: dict[str, Any]) -> Change:
    key = entry["figure"]
    try:
        field = field_of(key)
        new, old = (field.parse(_as_written(entry[name])) for name in ("value", "was"))
    except InputError as error:
        raise InputError(f"{file}: changes: {key} {error}") from None
    return Change(key, old, new, field.unit, _recorded(file, entry.get("follows", ())))


def _as_written(given: object) -> object:
    """Numbers as text, so that a number without its unit is refused."""
    return given if isinstance(given, (bool, str)) else str(given)


def _keys(changes: Iterable[Change]) -> set[str]:
    return set().union(*(one.keys for one in changes))


def _base(path: Path, name: str, trail: tuple[Path, ...]) -> Gpu:
    if _known(name):
        return _load_builtin(name)
    candidate = path.parent / name
    if name.lower().endswith((".yaml", ".yml")):
        if not candidate.is_file():
            raise InputError(f"{path.name}: extends is {name!r}, no such file beside it; correct the path")
        return _load(candidate, trail)
    raise InputError(
        f"{path.name}: extends is {shown(name)}, neither a built-in id nor a .yaml file; "
        f"{nearest(name, known_gpu_ids())}"
    )


def _consistent(file: str, gpu: Gpu) -> Gpu:
    problem = inconsistency(gpu)
    if problem:
        raise InputError(f"{file}: {problem}")
    return gpu


def gpu_to_yaml(gpu: Gpu) -> str:
    """Text of a file that `load_gpu` reads back to an equal GPU.

    A changed built-in GPU is written with `extends` and its changes only; any other GPU in full.
    """
    base = _load_builtin(gpu.base_id) if _known(gpu.base_id) else None
    derived = base is not None and gpu != base
    document: dict[str, Any] = {"id": gpu.id, "name": gpu.name}
    if derived:
        document["extends"] = gpu.base_id
    else:
        if gpu.base_id != gpu.id:
            document["base_id"] = gpu.base_id
        document |= {"architecture": gpu.architecture, "compute_capability": gpu.compute_capability}
    if gpu.changes:
        document["changes"] = list(map(_entry, gpu.changes))
    for key, field in FIELDS.items():
        value = gpu.get(key)
        if derived and base is not None and value == base.get(key):
            continue
        figure = gpu.provenance.get(key) or Figure(value, field.unit, "assumed", "not recorded")
        section, name = key.split(".")
        document.setdefault(section, {})[name] = {
            "value": _written(field.unit, value),
            "kind": figure.kind,
            "source": figure.source,
        }
    return yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=120)


def _entry(change: Change) -> dict[str, Any]:
    """A change in the form that `_change` reads."""
    new, old = (_written(change.unit, value) for value in (change.new, change.old))
    follows = {"follows": list(map(_entry, change.follows))} if change.follows else {}
    return {"figure": change.key, "value": new, "was": old, **follows}


def _written(unit: str, value: float) -> object:
    return bool(value) if unit == "bool" else show(value, unit)


def write_json_schema(path: str | Path) -> None:
    """Write the JSON Schema of GPU files, for editors and other tools."""
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **GpuFile.model_json_schema()}
    Path(path).write_text(f"{json.dumps(schema, indent=2)}\n", encoding="utf-8")
