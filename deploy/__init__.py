"""From a trained policy to a robot: export (torch), and a runtime that needs no torch."""

if __name__ != "robotrl.deploy":
    raise ImportError(f"import this package as robotrl.deploy, not as {__name__}")
