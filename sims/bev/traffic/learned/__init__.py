"""Traffic driven by a small network: inputs, network, stored files, forward simulation of candidates."""
