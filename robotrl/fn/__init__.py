"""Pure functions: advantages, losses, denoising chains, statistics."""
