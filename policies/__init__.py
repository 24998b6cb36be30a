"""Networks only: no losses, no optimisers."""

if __name__ != "robotrl.policies":
    raise ImportError(f"import this package as robotrl.policies, not as {__name__}")
