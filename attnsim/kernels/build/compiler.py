"""CUDA source to PTX (for the interpreter) and to a CUBIN (for resources and for a GPU), with no driver."""

from __future__ import annotations

import functools
import hashlib

from attnsim.errors import InputError
from attnsim.kernels.build import compile_cache
from attnsim.kernels.build.nvrtc import Compiled, CompileError, find_nvrtc
from attnsim.kernels.build.sources import source_hash
from attnsim.kernels.build.variant import Variant


@functools.cache
def compile_variant(variant: Variant, arch: str = "80", *, cubin: bool = True) -> Compiled:
    """Compile a variant for ``sm_<arch>``, or take it from the cache of an earlier run.

    Parameters
    ----------
    variant : Variant
    arch : str
        "80", "90a", ...
    cubin : bool
        Whether to assemble as well; PTX alone does not notice instructions that the architecture lacks.

    Raises
    ------
    InputError
        When NVRTC is not installed, or with the compiler's messages when it refuses the source.
    """
    nvrtc = find_nvrtc()
    options = [*variant.options, f"-arch={'sm' if cubin else 'compute'}_{arch}"]
    if cubin:
        options.append("--ptxas-options=-v")
    told = ["1", source_hash(variant), *map(str, nvrtc.version), *(o for o in options if not o.startswith("-I"))]
    key = hashlib.sha256("\0".join(told).encode()).hexdigest()[:40]
    found = compile_cache.read(key)
    if found is None:
        try:
            found = nvrtc.compile(variant.text(), variant.source, options)
        except CompileError as error:
            raise InputError(f"{variant.label} does not compile for sm_{arch}:\n{error}") from None
        compile_cache.write(key, found)
    return found
