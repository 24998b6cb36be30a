"""One module a command: its arguments as a frozen dataclass, and `main(argv)`, which returns the exit code.

These modules import nothing heavy at the top, so that help is instant; heavy imports happen when a command runs.
"""
