"""The update engine: optimizers, compiled updates, mixed precision, several processes."""
