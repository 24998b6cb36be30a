"""Child processes in a pool: the runs of several seeds or of a sweep, and the cells of a bench."""
