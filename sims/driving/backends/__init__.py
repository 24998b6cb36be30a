"""Compiled kernels on CPU threads and on CUDA."""
