"""Closed forms of single kernels: a streaming pass, a GEMM, the helpers of fused kernels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from attnsim.models.question.workload import Workload

Move = Literal["load", "store"]


@dataclass(frozen=True, slots=True)
class Moved:
    """One tensor that a kernel reads or writes.

    Parameters
    ----------
    kind : {"load", "store"}
    tensor : str
    requested_bytes : int
        Asked of global memory, re-reads included.
    unique_bytes : int
        Distinct bytes among them; 0 for the part of a tensor that an earlier entry has already counted.
    """

    kind: Move
    tensor: str
    requested_bytes: int
    unique_bytes: int


@dataclass(frozen=True, slots=True)
class Form:
    """Closed form of one kernel: traffic, tensor FLOPs (whole tiles), exponentials, shared-memory bytes."""

    kernel: str
    moved: tuple[Moved, ...]
    flops: int = 0
    exponentials: int = 0
    smem_bytes: int = 0

    def renamed(self, names: Mapping[str, str]) -> Form:
        """The same with other names for its tensors."""
        return replace(self, moved=tuple(replace(one, tensor=names.get(one.tensor, one.tensor)) for one in self.moved))


def load(tensor: str, requested: int, unique: int | None = None) -> Moved:
    """A read; every byte once unless `unique` says otherwise."""
    return Moved("load", tensor, requested, requested if unique is None else unique)


def store(tensor: str, requested: int, unique: int | None = None) -> Moved:
    """A write; every byte once unless `unique` says otherwise."""
    return Moved("store", tensor, requested, requested if unique is None else unique)


def summed(parts: Iterable[Form]) -> list[Form]:
    """The forms of each kernel in one: of sequences that a call attends together."""
    found: dict[str, list[Form]] = {}
    for part in parts:
        found.setdefault(part.kernel, []).append(part)
    return [_together(kernel, forms) for kernel, forms in found.items()]


def _together(kernel: str, forms: list[Form]) -> Form:
    moved: dict[tuple[Move, str], Moved] = {}
    for item in (item for one in forms for item in one.moved):
        seen = moved.get((item.kind, item.tensor), Moved(item.kind, item.tensor, 0, 0))
        sizes = seen.requested_bytes + item.requested_bytes, seen.unique_bytes + item.unique_bytes
        moved[item.kind, item.tensor] = Moved(item.kind, item.tensor, *sizes)
    amounts = ([getattr(one, name) for one in forms] for name in ("flops", "exponentials", "smem_bytes"))
    return Form(kernel, tuple(moved.values()), *map(sum, amounts))


def requested(parts: Iterable[Form]) -> dict[tuple[str, str, str], int]:
    """Bytes by (kernel, "load" or "store", tensor), empty entries left out."""
    out: dict[tuple[str, str, str], int] = {}
    for part in parts:
        for item in part.moved:
            if item.requested_bytes:
                key = (part.kernel, item.kind, item.tensor)
                out[key] = out.get(key, 0) + item.requested_bytes
    return out


def compulsory_bytes(parts: Iterable[Form]) -> int:
    """Each tensor once: read if it comes from outside the call, written if any kernel writes it."""
    known: set[str] = set()
    written: set[str] = set()
    total = 0
    for part in parts:
        for item in part.moved:
            if item.kind == "load":
                total += 0 if item.tensor in known else item.unique_bytes
            elif item.tensor not in written:
                total += item.unique_bytes
                written.add(item.tensor)
            known.add(item.tensor)
    return total


def gemm(
    name: str,
    batch: int,
    shape: tuple[int, int, int],
    tensors: tuple[str, str, str],
    element_bytes: tuple[int, int, int],
    *,
    rows: int = 128,
    a_shared_by: int = 1,
    b_shared_by: int = 1,
) -> Form:
    """A batched GEMM on C tiles of 128 x 128 (x 64 where C is no wider): A is read once per column of tiles.

    Parameters
    ----------
    name : str
    batch : int
    shape : (int, int, int)
        m, n, k.
    tensors, element_bytes : tuples
        Of A, B and C.
    rows : int
        Of a C tile.
    a_shared_by, b_shared_by : int
        Batch entries that read one copy of A, or of B.
    """
    m, n, k = shape
    width = 64 if n <= 64 else 128
    down, across, deep = -(-m // rows), -(-n // width), -(-k // 32)
    a, b, c = element_bytes
    steps = batch * down * across * deep
    # Four warps in a grid of two columns: each row of A is read twice from shared memory, each column of B
    # twice.
    operands = (2 * rows + 2 * width) * 32 * a
    return Form(
        name,
        (
            load(tensors[0], batch * m * k * across * a, batch * m * k * a // a_shared_by),
            load(tensors[1], batch * k * n * down * b, batch * k * n * b // b_shared_by),
            store(tensors[2], batch * m * n * c),
        ),
        flops=steps * 2 * rows * width * 32,
        smem_bytes=steps * operands,
    )


def combine(name: str, w: Workload, splits: int, columns: int = 1, merged_by: int = 1) -> Form:
    """Partial outputs of all splits in, O out; each block of columns reads the log-sum-exps again.

    Where several warps merge a row, each of their 32 lanes computes two exponentials a step, and two at the end.
    """
    rows = w.batch * w.heads_q * w.seq_q
    exps = splits * columns if merged_by == 1 else 64 * merged_by * (-(-splits // merged_by) + 1)
    return Form(
        name,
        (
            load("LSE partial", rows * splits * 4 * columns, rows * splits * 4),
            load("O partial", rows * splits * w.head_dim_v * 4),
            store("O", rows * w.head_dim_v * w.output_bytes),
        ),
        exponentials=rows * exps,
    )


def transfer(name: str, reads: Iterable[tuple[str, int]], writes: Iterable[tuple[str, int]], exps: int = 0) -> Form:
    """A pass that reads and writes whole tensors once."""
    return Form(name, (*(load(*item) for item in reads), *(store(*item) for item in writes)), exponentials=exps)


def around_fused(name: str, w: Workload, splits: int) -> Form | None:
    """A small kernel around a fused one, by its name; None when it is not one."""
    e, tokens = w.element_bytes, w.batch * min(w.seq_q, w.seq_kv)
    new = tokens * w.heads_kv * e
    widths = {x: w.head_dim_v if x in ("V", "O", "dV") else w.head_dim for x in ("Q", "K", "V", "O", "dK", "dV")}
    match name:
        case "combine" | "combine (states)":
            return combine(name, w, splits, merged_by=1 if name == "combine" else 4)
        case "combine (staged)":
            return combine(name, w, splits, -(-w.head_dim_v // (64 if w.head_dim_v <= 64 else 128)))
        case "cache_write":
            sizes = {x: new * widths[x] for x in "KV"}
            reads = [("slot mapping", 8 * tokens), *((f"new {x}", size) for x, size in sizes.items())]
            return transfer(name, reads, [(f"{x} cache", size) for x, size in sizes.items()])
        case "prepare":
            return transfer(name, [("lengths", 8 * w.batch)], [("splits", 4 * w.batch)])
        case "sequence offsets":
            return transfer(name, [("lengths", 8 * w.batch)], [("offsets", 16 * w.batch)])
        case "page offsets":
            keys = 4 * w.batch * w.seq_kv
            return transfer(name, [("page numbers", keys)], [("token offsets", keys)])
        case "store_cache":
            size = new * (w.head_dim + w.head_dim_v)
            return transfer(name, [("new KV", size)], [("KV cache", size)])
        case "slots K" | "slots V":
            return transfer(name, [("slots", 4 * tokens)], [(f"64-bit {name}", 8 * tokens)])
        case "index K" | "index V":
            tensor = name.removeprefix("index ")
            return transfer(
                name, [(f"new {tensor}", new * widths[tensor])], [(f"{tensor} cache", new * widths[tensor])]
            )
        case "combine (exits)":
            rows, width = (16, 64) if w.head_dim_v <= 64 else (8, 128)
            blocks = w.batch * -(-w.heads_q * w.seq_q // rows) * -(-w.head_dim_v // width)
            return transfer(name, [("splits", 4 * blocks)], [])
        case "Q transpose" | "O transpose":
            size = w.batch * w.heads_q * w.seq_q * widths[name[0]] * e
            return transfer(name, [(name[0], size)], [(f"{name[0]} transposed", size)])
        case "sum dK" | "sum dV":
            tensor = name.removeprefix("sum ")
            size = w.batch * w.heads_kv * w.seq_kv * widths[tensor] * e
            return transfer(name, [(f"{tensor} expanded", size * w.group)], [(tensor, size)])
    return None
