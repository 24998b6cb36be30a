"""OpenVLA checkpoints."""
