"""Presets: functions that return a fresh config; each composes a sim, a policy and an algorithm."""

if __name__ != "robotrl.configs":
    raise ImportError(f"import this package as robotrl.configs, not as {__name__}")
