"""Sizes of a question of the family, and the checks of its kernels."""

from __future__ import annotations

from dataclasses import dataclass

from attnsim.errors import InputError
from attnsim.models.question.workload import Workload


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a call. Heads of Q and K are shared by `group` consecutive heads of V, each with its own state.

    Parameters
    ----------
    sequences, tokens : int
        Sequences, and tokens per sequence that the call processes.
    heads, key_heads : int
        Heads of V and the states; heads of Q and K.
    d, dv : int
        Width of Q and K, and of V.
    e : int
        Bytes of an element.
    """

    sequences: int
    tokens: int
    heads: int
    key_heads: int
    d: int
    dv: int
    e: int

    @classmethod
    def of(cls, w: Workload) -> Shape:
        """Sizes of a workload: `heads_q` are the heads of V, `heads_kv` those of Q and K."""
        return cls(w.batch, w.seq_q, w.heads_q, w.heads_kv, w.head_dim, w.head_dim_v, w.element_bytes)

    @property
    def group(self) -> int:
        """Heads of V for each of Q and K."""
        return self.heads // self.key_heads

    @property
    def groups(self) -> tuple[int, int]:
        """Heads of Q and K, and the heads of V for each."""
        return self.key_heads, self.group

    @property
    def rows(self) -> int:
        """Tokens of all sequences."""
        return self.sequences * self.tokens

    @property
    def states(self) -> int:
        """States: one for each head of each sequence."""
        return self.sequences * self.heads

    def chunks(self, chunk: int) -> int:
        """Chunks of a sequence."""
        return -(-self.tokens // chunk)


def check_takes(name: str, w: Workload, widths: tuple[int, ...]) -> None:
    """Refuse questions that a recurrence cannot answer, and widths that the kernels are not compiled for."""
    mask = w.mask.within(w.seq_q, w.seq_kv)
    if not mask.is_band or mask.is_windowed or w.dropout or not (mask.is_causal or w.seq_q == 1):
        raise InputError(
            f"{name} walks a sequence from its first token to its last: the mask is {w.mask}"
            f"{', with dropout' if w.dropout else ''}; allowed: causal, without window, patterns and dropout"
        )
    if w.passes == "fwd" and w.seq_q != w.seq_kv:
        raise InputError(
            f"{name} takes in whole sequences: seq_q is {w.seq_q}, seq_kv {w.seq_kv}; make them equal, or take pass "
            "decode, which begins with the state of the tokens before"
        )
    if w.seq_q > w.seq_kv:
        raise InputError(
            f"{name}: seq_q is {w.seq_q}, seq_kv {w.seq_kv}; the last tokens are a part of the sequence, take seq_q 1 "
            "to seq_kv"
        )
    for what, width in (("head_dim", w.head_dim), ("head_dim_v", w.head_dim_v)):
        if width not in widths:
            raise InputError(f"{name} has no kernels of {what} {width}; allowed: {', '.join(map(str, widths))}")
    if w.latent is not None:
        raise InputError(f"{name} keeps a state, not a latent ({w.latent}); leave --latent out")


def state_bytes(w: Workload, element_bytes: int = 4) -> int:
    """Bytes of the states of all sequences, independent of their length."""
    return w.batch * w.heads_q * w.head_dim * w.head_dim_v * element_bytes


def io_bytes(w: Workload) -> int:
    """Bytes of Q, K and V of the processed tokens, their output, and gates of fp32."""
    keys = 2 * w.heads_kv * w.head_dim * w.element_bytes
    values = w.heads_q * w.head_dim_v * (w.element_bytes + w.output_bytes)
    return w.batch * w.seq_q * (keys + values + 8 * w.heads_q)
