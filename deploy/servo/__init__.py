"""The servo: the process that alone commands a robot, at a fixed rate, whatever inference does."""
