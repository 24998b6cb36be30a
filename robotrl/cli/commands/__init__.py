"""One module a command: its arguments as a frozen dataclass, and `main(argv)`, which returns the exit code.

A module here imports nothing heavy at the top, so that help is instant; what does the work is imported when it runs.
"""
