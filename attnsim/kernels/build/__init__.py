"""From a CUDA source to PTX and CUBIN, and what the assembler says of it."""
