"""Numerical operations of the hybrid decoders: a plain torch reference of each. Shared by plugins; no plugin itself.

The references say what an operation means, on any device and in any number type. They favour being read over being
fast, and the kernels (`kernels/`) are tested against them. Layers call `dispatch`, which runs what `table` says.
"""
