"""Presets: functions that return a new config; each one combines a sim, a policy and an algorithm."""

if __name__ != "robotrl.configs":
    raise ImportError(f"import this package as robotrl.configs, not as {__name__}")
