"""Batched simulators: one adapter a file or folder, each importing its simulator only when made."""

if __name__ != "robotrl.sims":
    raise ImportError(f"import this package as robotrl.sims, not as {__name__}")
