"""Kernels of our own, in C++ (`native/` at the top of the repository), called through a C interface by ctypes."""
