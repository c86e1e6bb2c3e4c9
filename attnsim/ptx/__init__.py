"""Parses, runs and checks PTX kernels without a GPU: a SIMT interpreter on NumPy and compiled loops.

Each thread of a batch of blocks is a lane of NumPy arrays, and each PTX instruction is compiled to one closure over
them. Inside a basic block, instructions of one kind are executed as one (see `basic_blocks`), and the arithmetic
between them is a tape that one compiled loop plays (see `tape`). After a fault, the batch is run again, one instruction
after another. :func:`attnsim.ptx.run.run` runs a kernel on the caller's arrays and returns the counts of a profiler.

The interpreter stops at behaviour that a GPU leaves undefined, and reports the place: addresses outside an array or
misaligned, reads of uninitialised shared memory, races between warps, copies that are used before they were waited for,
barriers and warp-wide instructions in divergent code, deadlocks.

Limits:

- Lanes of a warp run in step while they are together. A missing ``__syncwarp`` is found if a lane loads data that
  another lane of its warp has written, not if a store overtakes another lane's load. In kernels with named barriers or
  mbarriers (see `ordering`) it is not found at all.
- Blocks run in batches, each to its end, and warps in any order. A kernel in which blocks wait for one another does not
  end. Races in global memory are not checked.
- Divergent lanes reconverge at the lowest instruction number. For compiled loops and branches this is where a GPU
  reconverges too. PTX with another block layout may reconverge later, and a warp-wide instruction may then be refused.
- Sums of ``mma`` are float32 sums along k from 0; a tensor core sums in another order and truncates. Sums of ``wgmma``
  are in NumPy's order. Approximate functions are correctly rounded; a fused multiply-add is rounded once from float64.
  Results agree with a GPU up to rounding.
- Bytes are requested bytes, sectors are touched sectors: there are no caches, and no time. Bank conflicts follow a
  model (see `compiled`).
- Fragment layouts follow the PTX ISA; they were checked against its formulas, not against a GPU.
- Hopper: supported are mbarriers, tensor copies, bulk stores and reductions (see `bulk_copies`), wgmma on 16-bit
  elements, named barriers, setmaxnreg, and for clusters in a row barriers, multicast and arrivals at another block's
  mbarrier (see `clusters`). Loads and stores in another block's memory are not supported.
- Blackwell: supported are ``f32x2``, and tcgen05 of one block on 16-bit elements (see `tensor_memory`, also for the
  checks that Triton's PTX makes impossible).
- ``mbarrier.try_wait`` suspends its thread until the phase ends, so a kernel that relies on its time limit stops here.
  A bulk copy arrives when no thread can proceed. wgmma reads its operands when it is issued; a store to them before it
  is complete is refused.
"""
