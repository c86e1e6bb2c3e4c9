"""Reads machine code from a cubin: instructions, their pipes, loops, and the path of one loop iteration.

The pipes are those of a partition of an SM (NVIDIA Nsight Compute documentation, "Metrics Decoder": pipelines). Control
bits are bits 105 to 121 of an instruction (Jia et al., arXiv 1804.06826, section 2.1: control information, which has
kept its place since Volta).

A cubin is an ELF file with the code of each kernel in a section ``.text.NAME`` (CUDA Binary Utilities, "What is a CUDA
Binary?"). Since Volta an instruction has 128 bits (Jia et al., arXiv 1804.06826, section 2.1):

- Bits 0 to 8: the operation, whatever its operands. Bits 9 to 11: the form of the operands. From bit 12: the predicate.
- The offset of a branch from the next instruction: 48 bits from bit 34 on, in units of 4 bytes. From sm_90 on, eight
  more bits from bit 16 on extend it below.

The operations are those that ``nvdisasm`` names in our own kernels and in Triton's for sm_80 and sm_90.
"""

from __future__ import annotations

import functools
import struct
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from attnsim.by_hand import by_hand
from attnsim.errors import InputError

PIPES = {
    "tensor": "HMMA IMMA QGMMA HGMMA UTCHMMA",
    "matrix_load": "LDSM LDSMT MOVM",
    "exp": "MUFU",
    "fp32": "FADD FMUL FFMA IMAD FADD2 FMUL2 FFMA2 FSWZADD HFMA2 HADD2 HMUL2",
    "integer": "FMNMX FMNMX3 FSETP FSEL FSET FCHK IADD3 IADD VIADD LOP3 PLOP3 ISETP SEL SHF SHL SHR PRMT LEA IMNMX "
    "VIMNMX IABS MOV F2FP LOP P2R R2P VOTE CSEL BMSK SGXT FLO POPC I2FP",
    "load_store": "LDS STS LDG STG LDGSTS SHFL ATOM ATOMG ATOMS RED REDG LDL STL LDC LD ST LDTM STTM STSM REDUX",
    "copy": "UTMALDG UTMASTG UTMAPF UBLKCP SYNCS",
}
"""Opcodes by pipe, without modifiers; all other opcodes only take an issue slot (control, uniform registers).
`copy`: bulk copies of tiles, and the mbarriers that wait for them."""
PIPE_OF = {opcode: pipe for pipe, opcodes in PIPES.items() for opcode in opcodes.split()}
OTHER = "other"
NEEDED = ("tensor", "matrix_load", "load_store", "copy")
"""Pipes that no rarely executed piece uses."""
PIECE = by_hand(4, "instructions from which on a compiler jumps over a piece, and does not run it under a predicate")


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction with its control bits: stall clocks, scoreboards that it sets, and scoreboards that it waits for.

    Parameters
    ----------
    address : int
        In bytes.
    opcode : str
        With its modifiers if known.
    pipe : str
        The pipe that executes it.
    predicate, conditional : bool
        True if it is predicated; for a branch, true if it has a further condition.
    target : int or None
        Index of the instruction that a branch jumps to; None for other instructions, and for branches that only
        diverged warps take.
    stall : int
        Clocks before the warp's next instruction may issue.
    written, read : int or None
        Scoreboards that it sets until its result is written, and until its operands are read.
    waits : tuple of int
        Scoreboards that it waits for.
    """

    address: int
    opcode: str
    pipe: str
    predicate: bool
    conditional: bool
    target: int | None
    stall: int
    written: int | None
    read: int | None
    waits: tuple[int, ...]

    @property
    def name(self) -> str:
        """The opcode without its modifiers."""
        return self.opcode.partition(".")[0]


def pipe_of(opcode: str) -> str:
    """Return the pipe of an opcode."""
    return PIPE_OF.get(opcode.partition(".")[0], OTHER)


def controlled(bits: int) -> tuple[int, int | None, int | None, tuple[int, ...]]:
    """Decode stall, scoreboards written, read and waited for, from the upper 64 bits of an instruction."""
    bits >>= 41
    written, read = bits >> 5 & 7, bits >> 8 & 7
    waits = tuple(number for number in range(6) if bits >> 11 + number & 1)
    return bits & 15, None if written == 7 else written, None if read == 7 else read, waits


@dataclass(frozen=True)
class Code:
    """A kernel's instructions.

    Parameters
    ----------
    capability : int
        80 for compute capability 8.0; 0 for PTX.
    """

    name: str
    instructions: tuple[Instruction, ...]
    capability: int = 0

    def target(self, index: int) -> int | None:
        """Return the index that a branch jumps to; None for other instructions."""
        return self.instructions[index].target

    def loops(self) -> list[range]:
        """Return the loops with tensor instructions, nested ones included."""
        return [one for one in self.every_loop if self.counts(one)["tensor"]]

    @functools.cached_property
    def every_loop(self) -> list[range]:
        """All loops, each as the range from its head to its last backward branch.

        A backward branch from a piece behind the loop, such as a rarely needed wait, ends no loop: the branch can be
        reached without passing the head. A loop that is entered after its head counts, if nothing else leads to the
        head.
        """
        ahead = {to for index in range(len(self.instructions)) if (to := self.target(index)) is not None and to > index}
        ends: dict[int, int] = {}
        without: dict[int, set[int]] = {}
        for index in sorted(self._reached_without(None)):
            start = self.target(index)
            if start is not None and start <= index:
                if start not in without:
                    without[start] = self._reached_without(start)
                entered = start in ahead or start in self.following(start - 1)
                if index not in without[start] or not entered:
                    ends[start] = index
        return [range(start, end + 1) for start, end in sorted(ends.items())]

    def _reached_without(self, start: int | None) -> set[int]:
        """Return the instructions that are reachable without passing the one at `start`."""
        found, pending = set[int](), [0]
        while pending:
            index = pending.pop()
            if index != start and index < len(self.instructions) and index not in found:
                found.add(index)
                pending += self.following(index)
        return found

    def following(self, index: int) -> list[int]:
        """Return the possible next instructions of a warp; -1 stands for the state before the first."""
        if index < 0:
            return [0]
        one, to = self.instructions[index], self.target(index)
        surely = not one.predicate and not one.conditional
        return [
            *([to] if to is not None else []),
            *([] if surely and (to is not None or one.name == "EXIT") else [index + 1]),
        ]

    def counts(self, where: Iterable[int]) -> Counter[str]:
        """Count instructions by pipe."""
        return Counter(self.instructions[index].pipe for index in where)

    def path(
        self, loop: range, iterations: Sequence[int] = (1,), *, whole: bool = False, needed: Sequence[str] = NEEDED
    ) -> Iterator[int]:
        """Yield the instructions of one loop iteration: inner loops repeated, rarely executed pieces left out.

        A rarely executed piece is one that a branch skips and that has neither products nor memory accesses, such as
        the rescaling of O, or a mask.

        Parameters
        ----------
        loop : range
            The loop, as a range of instructions.
        iterations : sequence of int
            Iterations of the inner loops in order; the last number holds for all further ones. 0 leaves a loop out.
        whole : bool
            Include the rarely executed pieces.
        needed : sequence of str
            A piece with an instruction of one of these pipes is always executed.
        """
        inner = [one for one in self.every_loop if inside(one, loop)]
        each = [*iterations, *[iterations[-1]] * len(inner)]
        index, left = loop.start, {one.stop - 1: n - 1 for one, n in zip(inner, each, strict=False)}
        without = {one.start: one.stop for one, n in zip(inner, each, strict=False) if n == 0}
        while index < loop.stop:
            if index in without:
                index = without[index]
                continue
            yield index
            to = self.target(index)
            if to is None:
                index += 1
            elif to > index:
                skipped = self._skipped(index, loop.stop)
                seldom = self._closed(skipped) and not any(self._needed(one, needed) for one in skipped)
                away = self._longer(skipped) if whole else seldom or self._longer(skipped, shorter=True)
                index = max(to, skipped.stop) if away or not self.instructions[index].predicate else skipped.start
            elif left.get(index, 0) > 0:
                left[index] -= 1
                index = to
            else:
                index += 1

    def _skipped(self, index: int, stop: int) -> range:
        """Return the range that a forward branch skips.

        Compilers also write a branch over a lone branch; then it is the range that the second branch skips.
        """
        to = self.instructions[index].target or 0
        following = self.instructions[index + 1]
        beyond = following.target if to == index + 2 and not (following.predicate or following.conditional) else None
        first, end = (index + 1, to) if beyond is None or beyond < to else (to, beyond)
        return range(first, min(end, stop))

    def step(self, products: int) -> list[int] | None:
        """Return the shortest loop iteration with so many products; inner loops repeat as often as that takes."""
        return min(self._iterations(products), key=len, default=None)

    def hiding(self, products: int) -> list[int] | None:
        """Return the longest loop iteration with so many products, with its rarely executed pieces such as a mask."""
        return max(self._iterations(products, whole=True), key=len, default=None)

    def _iterations(self, products: int, *, whole: bool = False) -> Iterator[list[int]]:
        for loop in self.loops():
            once, twice = (self.counts(self.path(loop, [iterations], whole=whole))["tensor"] for iterations in (1, 2))
            more, rest = divmod(products - once, twice - once) if twice > once else (0, products - once)
            if rest == 0 and more >= 0:
                yield list(self.path(loop, [1 + more], whole=whole))

    def iteration(self, parts: Sequence[int], *, whole: bool = False) -> list[int] | None:
        """Return one iteration of a loop whose inner loops have different numbers of products.

        Parameters
        ----------
        parts : sequence of int
            Products of the parts of an iteration, in order. Each part is an inner loop or code outside of them.
        whole : bool
            As in :meth:`path`.

        Returns
        -------
        list of int or None
            None if no loop has these parts.
        """
        for loop in self.loops():
            inner = [one for one in self.every_loop if inside(one, loop)]
            each = [self.counts(one)["tensor"] for one in inner]
            outside = self.counts(loop)["tensor"] - sum(each)
            for chosen in combinations(parts, sum(map(bool, each))):
                of_loops = iter(chosen)
                iterations = [divmod(next(of_loops), one) if one else (1, 0) for one in each]
                if sum(parts) - sum(chosen) == outside and all(many and not rest for many, rest in iterations):
                    return list(self.path(loop, [many for many, _ in iterations] or [1], whole=whole))
        return None

    def _needed(self, index: int, pipes: Sequence[str] = NEEDED) -> bool:
        one = self.instructions[index]
        return one.pipe in pipes and one.name != "LDC"

    def _longer(self, piece: range, *, shorter: bool = False) -> bool:
        """True if a piece ends with a jump over its alternative, and the alternative is longer (or `shorter`)."""
        last = piece.stop - 1
        end = self.target(last) if piece and not self.instructions[last].predicate else None
        if end is None or end <= piece.stop:
            return False
        return end - piece.stop < len(piece) if shorter else end - piece.stop > len(piece)

    def pieces(self, where: range) -> list[range]:
        """Return the outermost ranges that branches skip and that access memory, except those that end the kernel."""
        found, index = [], where.start
        while index < where.stop:
            to = self.target(index)
            skipped = range(index + 1, min(to, where.stop)) if to is not None else range(0)
            ends = to is None or to >= len(self.instructions) or self.instructions[to].name == "EXIT"
            if len(skipped) >= PIECE and not ends and any(self._needed(one) for one in skipped):
                found.append(skipped)
                index = skipped.stop
            else:
                index += 1
        return found

    def _closed(self, piece: range) -> bool:
        """True if every branch in a piece stays inside it or goes to its end."""
        targets = [to for index in piece if (to := self.target(index)) is not None]
        return all(piece.start <= to <= piece.stop for to in targets)


def inside(inner: range, outer: range) -> bool:
    """True if `inner` is a proper part of `outer`."""
    return inner != outer and inner.start >= outer.start and inner.stop <= outer.stop


_TABLE = """
002 MOV 003 P2R 004 R2P 005 CS2R 006 VOTE 007 SEL 008 FSEL 009 FMNMX 00b FSETP 00c ISETP 010 IADD3 011 LEA 012 LOP3
013 IABS 016 PRMT 017 IMNMX 019 SHF 01a SGXT 01c PLOP3 020 FMUL 021 FADD 023 FFMA 024 IMAD 025 IMAD 027 IMAD
02f ELECT 030 HADD2 031 HFMA2 035 HFMA2 036 VIADD 03b LDSM 03c HMMA 03e F2FP 044 STSM 046 VIADDMNMX 048 VIMNMX
076 FMNMX3 082 UMOV 083 UP2UR 086 VOTEU 087 USEL 08c UISETP 090 UIADD3 091 ULEA 092 ULOP3 099 USHF 09c UPLOP3
0a4 UIMAD 0a5 UIMAD 0b9 ULDC 0ca R2UR 105 F2I 106 I2F 108 MUFU 111 F2I 112 I2F 118 NOP 119 S2R 11a DEPBAR
11b ENDCOLLECTIVE 11d BAR 141 BSYNC 142 BREAK 144 CALL 145 BSSY 146 YIELD 147 BRA 148 WARPSYNC 14d EXIT 150 RET
181 LDG 182 LDC 183 LDL 184 LDS 186 STG 187 STL 188 STS 189 SHFL 18e RED 1a6 REDG 1a7 SYNCS 1ac LDCU 1ae LDGSTS
1af LDGDEPBAR 1b2 SYNCS 1b4 UTMALDG 1b9 UTMACCTL 1c2 R2UR 1c3 S2UR 1c5 WARPGROUP 1c6 FENCE 1c8 USETMAXREG 1f0 HGMMA
"""
_WORDS = _TABLE.split()
NAMES = dict(zip((int(number, 16) for number in _WORDS[::2]), _WORDS[1::2], strict=True))
"""Operations by their nine bits; all others count as issued on no pipe."""

_SECTION = struct.Struct("<IIQQQQIIQQ")
_PREFIX = ".text."
_ALWAYS = 7  # the predicate that is true
_PLAIN = 4  # the form of a branch that no uniform register decides; marked, it is taken where lanes have parted
_WIDTHS = ("U8", "S8", "U16", "S16", "", "64", "128", "")
"""Access widths in global memory per thread, by bits 73 to 75; "" for 32 bits."""
_LOW_BITS = 8
_FLAGS_SHIFTED = 8  # the version of the ABI from which on the architecture is in the second byte of the flags


def kernels_in(cubin: bytes) -> dict[str, Code]:
    """Return the kernels of a cubin by name.

    Raises
    ------
    InputError
        If the bytes are not a cubin.
    """
    if cubin[:5] != b"\x7fELF\x02":
        raise InputError("a cubin is a 64-bit ELF file; this is none")
    (flags,) = struct.unpack_from("<I", cubin, 0x30)
    arch = flags >> 8 & 0xFF if cubin[8] >= _FLAGS_SHIFTED else flags & 0xFF
    return {name: _code(name, text, arch) for name, text in _sections(cubin) if text}


def _sections(cubin: bytes) -> Iterator[tuple[str, bytes]]:
    (start,) = struct.unpack_from("<Q", cubin, 0x28)
    size, count, names = struct.unpack_from("<HHH", cubin, 0x3A)
    headers = [_SECTION.unpack_from(cubin, start + size * number) for number in range(count)]
    strings = headers[names][4]
    for header in headers:
        name = cubin[strings + header[0] : cubin.index(b"\0", strings + header[0])].decode()
        if name.startswith(_PREFIX):
            yield name.removeprefix(_PREFIX), cubin[header[4] : header[4] + header[5]]


def _code(name: str, text: bytes, arch: int) -> Code:
    words, low_bits = struct.iter_unpack("<QQ", text), _LOW_BITS if arch >= 90 else 0
    found = tuple(_instruction(16 * index, low, high, low_bits) for index, (low, high) in enumerate(words))
    return Code(name, found, arch)


def _instruction(address: int, low: int, high: int, low_bits: int) -> Instruction:
    name = NAMES.get(low & 0x1FF, f"0x{low & 0x1FF:03x}")
    target, conditional, form, marked = None, False, low >> 9 & 7, high >> 27 & 1
    if name == "BRA":
        away = low >> 34 | (high & 0x3FFFF) << 30
        away = (away - (away >> 47 << 48) << low_bits) | (low >> 16 & (1 << low_bits) - 1)
        target = None if (form, marked) == (_PLAIN, 1) else (address + 16 + 4 * away) // 16
        conditional = form != _PLAIN or high >> 23 & 15 != _ALWAYS
    if name in ("LDG", "STG"):
        name = f"{name}.{_WIDTHS[high >> 9 & 7]}".rstrip(".")
    return Instruction(address, name, pipe_of(name), low >> 12 & 15 != _ALWAYS, conditional, target, *controlled(high))
