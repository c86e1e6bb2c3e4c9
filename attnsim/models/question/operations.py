"""Operations of a call: the kernels that unfused attention runs between and around its two GEMMs, in order.

Each operation passes over whole tensors in memory. Those on S and P, the N x N matrices, cost most:

* ``expand``: K and V are repeated for the query heads of a group, in copies; backward: dK and dV are summed over it.
* ``copies``: Q, K and V are strided, and are copied into the order of the GEMMs; backward: dO is, and dQ, dK and dV
  are copied back. ``copies fp32`` writes fp32, in which all that follows runs; O and P are cast back.
* ``scale inputs``: Q and K are each multiplied by the root of the scale; backward: dQ and dK.
* ``scale``: S is read, multiplied and written; backward: dS is. Without either, the scale is the first GEMM's alpha,
  which costs nothing forward; backward, dQ and dK are multiplied.
* ``mask``: S is read, the mask of one head added, S written. A mask without this pass is part of another operation.
* ``softmax``: reads S and writes P; backward: dP and P give a product, which with P gives dS. ``softmax fp32`` writes
  P in fp32 and casts it back; backward: dP is cast to fp32.
* ``row check``: fully masked rows are searched and zeroed: S is read, a byte per element written and read, P read and
  written.
* ``dropout RATE``: reads P, writes it again and a byte per element; backward: dP and the bytes are read, dP written.
  The rate does not change the time; at rate 0 nothing is launched.
* ``accumulate``: after the backward, dQ, dK and dV are added to existing gradients: two reads and a write each.

The GEMMs S = Q K^T and O = P V are in every list, unnamed. The work of a fused kernel has no operations; those of
`SURROUNDING` may surround one.
"""

from __future__ import annotations

from dataclasses import dataclass

from attnsim.errors import InputError, nearest, shown

ORDER = (
    ("expand",),
    ("copies", "copies fp32"),
    ("scale inputs",),
    ("scale",),
    ("mask",),
    ("softmax", "softmax fp32"),
    ("row check",),
    ("dropout",),
    ("accumulate",),
)
"""Operations in the order in which they run; a call has at most one of each line."""

SURROUNDING = ("copies", "accumulate")
"""Operations that may also surround a fused kernel."""

_PLACE = {name: place for place, names in enumerate(ORDER) for name in names}


@dataclass(frozen=True, slots=True)
class Operations:
    """The operations of a call, in the order in which they run.

    Parameters
    ----------
    dropout : float
        Dropout rate in [0, 1); above 0 exactly if "dropout" is among the names.

    Raises
    ------
    InputError
        If an operation is repeated or out of order, or the dropout rate is not in [0, 1).
    """

    names: tuple[str, ...]
    dropout: float = 0.0

    def __post_init__(self) -> None:
        for name in self.names:
            if name not in _PLACE:
                raise InputError(f"operation {shown(name)} is not known; {nearest(name, _PLACE)}; all: {_all()}")
        places = [_PLACE[name] for name in self.names]
        if places != sorted(set(places)):
            raise InputError(f"operations are {shown(str(self))}; each runs once, in the order {_all()}")
        if not 0 <= self.dropout < 1 or (self.dropout > 0) != ("dropout" in self.names):
            raise InputError(f"dropout is {self.dropout:g}; allowed: a rate from 0 on and below 1, as 'dropout 0.1'")

    @classmethod
    def parse(cls, text: str) -> Operations:
        """Read the text form, ``scale, softmax, dropout 0.1``; + separates like a comma."""
        items = [" ".join(item.lower().split()) for item in text.replace("+", ",").split(",")]
        if not all(items):
            raise InputError(f"operations are {shown(text)}; write 'scale, softmax, dropout 0.1'; all: {_all()}")
        dropout = 0.0
        names = []
        for item in items:
            name, _, rate = item.partition(" ")
            if name == "dropout":
                if not (rate.isascii() and rate.replace(".", "", 1).isdigit() and float(rate) < 1):
                    raise InputError(
                        f"operation {shown(item)} has no rate from 0 on and below 1; write it as 'dropout 0.1'"
                    )
                dropout = float(rate)
                names += [name] if dropout else []
            else:
                names.append(item)
        return cls(tuple(names), dropout)

    def __contains__(self, name: object) -> bool:
        return name in self.names

    def __str__(self) -> str:
        return ", ".join(f"{name} {self.dropout:g}" if name == "dropout" else name for name in self.names)

    @property
    def may_surround(self) -> bool:
        """Whether all of them may surround a kernel, fused or not."""
        return all(name in SURROUNDING for name in self.names)

    @property
    def has_softmax(self) -> bool:
        """Whether they are operations of unfused attention."""
        return "softmax" in self or "softmax fp32" in self

    def without(self, *names: str) -> Operations:
        """The operations without the given ones."""
        left = tuple(name for name in self.names if name not in names)
        return Operations(left, self.dropout if "dropout" in left else 0.0)

    def with_dropout(self, rate: float) -> Operations:
        """The operations with dropout at `rate`."""
        names = {*self.names, "dropout"}
        return Operations(tuple(sorted(names, key=_PLACE.__getitem__)), rate)


def _all() -> str:
    return ", ".join(" or ".join(names) for names in ORDER).replace("dropout", "dropout RATE")
