"""Every opcode of the tape does bit for bit what its reference in NumPy does, wherever lanes agree or not."""

from __future__ import annotations

import numpy as np
import pytest

from attnsim.ptx.basic_blocks import Tape, code_of, kinds
from attnsim.ptx.lanes import WARP, Mask, Values
from attnsim.ptx.machine import Machine
from attnsim.ptx.registers import DTYPES, UNSIGNED
from attnsim.ptx.syntax import Function, Immediate, Instruction, Operand, Register
from tests.ptx.reference_arithmetic import reference

LANES = 4096
SPECIAL = (
    *(0, 1, 31, 32, 33, 63, 64, 2**31 - 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1),
    *(0x7F80_0000, 0xFF80_0000, 0x7FC0_0001, 0x7F80_0001, 0xFFC0_1234),  # infinities and NaN
    *(0x3880_0000, 0x387F_F000, 0x477F_EFFF, 0x477F_F000, 0x3300_0000, 0x3300_0001),  # where float16 ends
)
MASKS = {
    "full": np.ones(LANES, bool),
    "warps": np.arange(LANES) // WARP % 3 > 0,
    "lanes": np.random.default_rng(1).random(LANES) < 0.5,
}


def values(ptx_type: str, seed: int) -> Values:
    """Random bits, numbers near each other, and special ones beside each other in every pair."""
    rng, size = np.random.default_rng(seed), DTYPES[ptx_type].itemsize
    bits = rng.integers(0, 2**64, LANES, np.uint64)
    if ptx_type == "pred":
        chances: Values = bits % 2 == 1
        return chances
    if ptx_type == "f32":
        bits[: LANES // 2] = (
            (rng.standard_normal(LANES // 2) * 4.0 ** rng.integers(-15, 12, LANES // 2))
            .astype(np.float32)
            .view(np.uint32)
        )
    else:
        bits[: LANES // 2] = bits[: LANES // 2] % 80
    chosen = np.array(SPECIAL, np.uint64)
    pairs = np.tile(chosen, len(chosen)) if seed % 2 else np.repeat(chosen, len(chosen))
    bits[-len(pairs) :] = pairs
    return bits.astype(UNSIGNED[size]).view(DTYPES[ptx_type])


def given(opcode: str, agree: tuple[bool, ...]) -> list[Values]:
    """Values of an instruction's target and sources; one for all lanes where they agree."""
    found = [values(ptx_type, seed) for seed, ptx_type in enumerate(kinds()[opcode].types)]
    return [one[7:8] if same else one for one, same in zip(found, (False, *agree), strict=True)]


def played(opcode: str, start: list[Values], mask: Mask) -> Values:
    """What an instruction leaves in its target, as the tape plays it."""
    name, *modifiers = opcode.split(".")
    kept = [t if t == "pred" else f"b{8 * DTYPES[t].itemsize}" for t in kinds()[opcode].types]
    registers = [Register(f"%r{i}", t) for i, t in enumerate(kept)]
    operands: tuple[Operand, ...] = tuple(registers)
    instruction = Instruction(name, tuple(modifiers), operands, None, (), opcode)
    machine = Machine(Function("one", (), (instruction,), ()))
    code = code_of(instruction, machine)
    assert code
    machine.registers.start(LANES)
    for register, one in zip(registers, start, strict=True):
        machine.registers.preset(register.name, one)
    Tape([code], machine)(mask)
    found: Values = np.broadcast_to(machine.read(registers[0], kept[0])(), LANES).copy()
    return found


@pytest.mark.parametrize("opcode", kinds())
def test_as_its_reference(opcode: str) -> None:
    sources = len(kinds()[opcode].types) - 1
    for mask in map(Mask, MASKS.values()):
        for agree in ((False,) * sources, (True,) * sources, (True, *(False,) * (sources - 1))):
            before, *operands = start = given(opcode, agree)
            with np.errstate(all="ignore"):
                result = np.broadcast_to(reference(opcode)(*operands), LANES)
            found = played(opcode, start, mask)
            expected = np.where(mask.lanes, result.view(found.dtype), before.view(found.dtype))
            np.testing.assert_array_equal(found, expected)


def test_a_constant() -> None:
    add = Instruction("add", ("s32",), (Register("%r0", "b32"), Register("%r1", "b32"), Immediate("-3")), None, (), "")
    machine = Machine(Function("one", (), (add,), ()))
    code = code_of(add, machine)
    assert code
    machine.registers.start(64)
    machine.registers.preset("%r1", np.arange(64, dtype=np.uint32))
    Tape([code, code], machine)(Mask(np.ones(64, bool)))
    np.testing.assert_array_equal(machine.read(Register("%r0", "b32"), "s32")(), np.arange(64) - 3)
