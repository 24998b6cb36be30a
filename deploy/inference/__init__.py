"""Inference in a process of its own: the bundle's graph, and the shared memory in which chunks are asked for."""
