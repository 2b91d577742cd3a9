"""Kernels in C: shipped with the wheel, or built where there is a compiler; each has a fallback in Python.

Whether a kernel runs, and for which instruction set, depends only on the machine and on FEDAVG_NATIVE, never on a
timing, since kernels round differently from what they replace.
"""

from fedavg.native.kernels import VARIABLE, FoundKernel, call, compiler, found, in_use, library, marked

__all__ = ["VARIABLE", "FoundKernel", "call", "compiler", "found", "in_use", "library", "marked"]
