"""Kernels in C: shipped with the wheel, or built where there is a compiler; every one has a way to do without.

Whether and for which instructions a kernel runs depends on the machine and on FEDAVG_NATIVE alone, never on a timing,
since kernels round differently from what they replace.
"""

from fedavg.native.kernels import VARIABLE, FoundKernel, call, compiler, found, in_use, library, marked

__all__ = ["VARIABLE", "FoundKernel", "call", "compiler", "found", "in_use", "library", "marked"]
