"""Machine code read from a cubin itself: which instructions, where branches go; no disassembler is needed.

A cubin is an ELF file with the code of each kernel in a section ``.text.NAME`` (CUDA Binary Utilities, "What is a CUDA
Binary?"). Since Volta an instruction has 128 bits (Jia et al., arXiv 1804.06826, section 2.1): the lowest nine tell the
operation whatever its operands, three before the twelfth their form, four from there on the predicate. A branch goes
so many bytes from the next instruction as the 48 bits from the 34th on say in fours, from sm_90 on with eight more bits
from the 16th on below them. The operations are those that ``nvdisasm`` names in our own kernels and in
Triton's for sm_80 and sm_90.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from attnsim.errors import InputError
from attnsim.ptx.machine_code import Code, Instruction, controlled, pipe_of

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
"""Operations by their nine bits; those that are not here issue, on no pipe that is counted."""

_SECTION = struct.Struct("<IIQQQQIIQQ")
_PREFIX = ".text."
_ALWAYS = 7  # the predicate that is true
_PLAIN = 4  # the form of a branch that no uniform register decides; marked, it is taken where lanes have parted
_WIDTHS = ("U8", "S8", "U16", "S16", "", "64", "128", "")
"""Modifiers for what a thread accesses of global memory, by bits 73 to 75; none: 32 bits."""
_LOW_BITS = 8
_FLAGS_SHIFTED = 8  # the version of the ABI from which on the architecture is in the second byte of the flags


def kernels_in(cubin: bytes) -> dict[str, Code]:
    """The kernels of a cubin by name.

    Raises
    ------
    InputError
        Where it is none.
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
