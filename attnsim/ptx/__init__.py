"""Parses, runs and checks kernels of PTX without a GPU: a SIMT interpreter on NumPy and compiled loops.

Every thread of a batch of blocks is a lane of NumPy arrays; each PTX instruction is compiled to one closure over them.
In a straight run of instructions those of one kind are executed as one (see `straight`), and arithmetic between them is
a list that one compiled loop goes through (see `tape`); when something goes wrong the batch is played once more, one
instruction after another.
:func:`attnsim.ptx.run.run` runs a kernel on the caller's arrays and returns what a profiler would count.

It stops at what a GPU leaves undefined, and says where: addresses outside an array or misaligned, shared memory that
was never written, races between warps, copies that are used before they were waited for, barriers and warp-wide
instructions in divergent code, deadlocks.

What it does not know:

- Lanes of a warp run in step where they are together. A missing ``__syncwarp`` is found when a lane loads what another
  lane of its warp has written, not when a store overtakes another lane's load; in kernels with named barriers or
  mbarriers (see `ordering`) not at all.
- Blocks run in batches, each to its end, and warps in any order: a kernel in which blocks wait for each other does not
  end here. Races in global memory are not looked for.
- Divergent lanes meet again at the lowest instruction number, which for compiled loops and branches is where they do
  on a GPU; PTX whose blocks are laid out otherwise may meet later, and a warp-wide instruction then be refused.
- Sums of ``mma`` are made in float32, along k from its beginning: not as a tensor core's, which also truncates. Those
  of ``wgmma`` are made in an order of NumPy's. Approximate functions are rounded correctly; a fused multiply-add is
  rounded once from float64. Expect equal results to rounding.
- Bytes are those requested, sectors those touched: no caches. Bank conflicts follow a model (see `compiled`). No time.
- Fragment layouts are those of the PTX ISA; they have been checked against its formulas, not against a GPU.
- Of Hopper it plays mbarriers, tensor copies, bulk stores and reductions (see `bulk_copies`), wgmma on 16-bit elements,
  named barriers, setmaxnreg and, of clusters of blocks in a row, barriers, multicast and arrivals at another block's
  mbarrier (see `clusters`), not loads and stores in another block's memory. Of Blackwell it knows ``f32x2`` and
  tcgen05 of one block on 16-bit elements (see `tensor_memory`, also for what Triton leaves to the assembler and so is
  not asked for). ``mbarrier.try_wait`` suspends its thread until the phase is over, so a kernel that
  counts on its time limit stops here. A bulk copy arrives when no thread can go on. wgmma reads its operands when it
  is issued; whoever stores to them before it is over is refused.
"""
