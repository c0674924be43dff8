"""Triton kernels of the operations in `tandem.plugins._ops`, each tested against its torch reference.

Nothing here is imported before `_ops.dispatch` has chosen it, so the package works where Triton is missing.

A row's result doesn't depend on how many rows share the call: a tile's size depends on the matrix (or, for attention,
on the committed length) and never on the rows, there are no atomic additions, and what is summed in parts is added up
in the order of the parts.
"""
