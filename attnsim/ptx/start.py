"""What a batch of blocks starts with: parameters, addresses of arrays and variables, special registers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnsim.errors import InputError
from attnsim.ptx.bulk_copies import BulkCopies
from attnsim.ptx.faults import UnsupportedInstruction
from attnsim.ptx.lanes import WARP, Dim3, Lanes, Values, position
from attnsim.ptx.machine import Machine
from attnsim.ptx.spaces import PARAMETER_WINDOW
from attnsim.ptx.syntax import Function, Parameter
from attnsim.ptx.tensor_maps import MAP_BYTES, TensorMap

Arguments = Mapping[str, NDArray[Any] | np.generic | TensorMap]


def preset(
    machine: Machine, function: Function, arguments: Arguments, grid: Dim3, first: int, dynamic_bytes: int
) -> None:
    """Parameters, addresses and special registers of the batch whose first block is `first`."""
    machine.parameters = _parameters(machine, function, arguments)
    addresses = dict(machine.addresses)
    for variable in function.variables:
        if variable.space in ("global", "const"):
            content = np.frombuffer(variable.content, np.uint8).copy()
            addresses[variable.name] = machine.memory.place(variable.name, content)
    for name, address in addresses.items():
        machine.registers.preset(name, np.array([address], np.uint64))
    for name, values in _special_registers(machine.lanes, grid, first, function.cluster).items():
        machine.registers.preset(name, values)
    machine.registers.preset("%dynamic_smem_size", np.array([dynamic_bytes], np.uint32))
    machine.registers.preset("%total_smem_size", np.array([machine.shared.bytes_per_block], np.uint32))
    for name in machine.registers.without_preset():
        place = next(i.place for i in function.instructions if name in i.text)
        raise UnsupportedInstruction(f"{place}: '{name}' is not known to the interpreter")


def _parameters(machine: Machine, function: Function, arguments: Arguments) -> dict[str, bytes]:
    """The bytes of each kernel parameter; arrays get an address."""
    if len(arguments) != len(function.parameters):
        raise InputError(
            f"{function.name} takes {len(function.parameters)} arguments, {len(arguments)} given: "
            f"{', '.join(arguments)}"
        )
    values = {}
    for parameter, (name, argument) in zip(function.parameters, arguments.items(), strict=True):
        if isinstance(argument, TensorMap):
            _place_map(machine, function, parameter, name, argument)
            continue
        value = np.uint64(machine.memory.place(name, argument)) if isinstance(argument, np.ndarray) else argument
        values[parameter.name] = _bytes_of(function.name, parameter, name, value)
    return values


def _place_map(machine: Machine, function: Function, parameter: Parameter, name: str, tensor_map: TensorMap) -> None:
    """A tensor map is never read, only pointed to: it gets an address, and no bytes."""
    if parameter.size_bytes != MAP_BYTES:
        raise InputError(f"{function.name}: {name} is a tensor map, its parameter takes {parameter.size_bytes} bytes")
    address = PARAMETER_WINDOW + MAP_BYTES * function.parameters.index(parameter)
    machine.memory.place(name, tensor_map.array)
    machine.unit(BulkCopies).place(address, name, tensor_map)
    machine.registers.preset(parameter.name, np.array([address], np.uint64))


def _bytes_of(kernel: str, parameter: Parameter, name: str, value: np.generic) -> bytes:
    if not isinstance(value, np.generic):
        raise InputError(f"{kernel}: {name} is {type(value).__name__}; give an array or a NumPy scalar (np.int32(5))")
    data = value.tobytes()
    if len(data) != parameter.size_bytes:
        raise InputError(f"{kernel}: {name} has {len(data)} bytes, its parameter takes {parameter.size_bytes}")
    return data


def _special_registers(lanes: Lanes, grid: Dim3, first: int, size: int) -> dict[str, Values]:
    """PTX ISA 9.0, chapter 10, those that say where a thread is."""

    def of(values: Values | int) -> Values:
        return np.atleast_1d(np.asarray(values)).astype(np.uint32)

    thread, block = position(lanes.thread_of, lanes.block), position(first + lanes.block_of, grid)
    registers: dict[str, Values] = {}
    for axis, t, b, nt, nb in zip("xyz", thread, block, lanes.block, grid, strict=True):
        registers[f"%tid.{axis}"] = of(t if nt > 1 else 0)
        registers[f"%ctaid.{axis}"] = of(b if (b != b[0]).any() else b[0])
        registers[f"%ntid.{axis}"] = of(nt)
        registers[f"%nctaid.{axis}"] = of(nb)
    rank = (first + lanes.block_of) % size  # in a cluster of blocks in a row
    registers |= {
        "%cluster_ctarank": of(rank if size > 1 else 0),
        "%cluster_ctaid.x": of(rank if size > 1 else 0),
        "%cluster_nctarank": of(size),
        "%cluster_nctaid.x": of(size),
    }
    own = np.uint32(1) << of(lanes.lane_of)
    below = own - np.uint32(1)
    return registers | {
        "%laneid": of(lanes.lane_of),
        "%warpid": of(lanes.warp_of),
        "%nwarpid": of(lanes.warps_per_block),
        "%lanemask_eq": own,
        "%lanemask_lt": below,
        "%lanemask_le": below | own,
        "%lanemask_gt": ~(below | own),
        "%lanemask_ge": ~below,
        "WARP_SZ": np.array([WARP], np.uint64),
    }
