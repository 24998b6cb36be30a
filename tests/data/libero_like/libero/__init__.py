"""What docs/sims/gymnasium.md uses of LIBERO, in the shape that hf-libero 0.1.4 has it."""
