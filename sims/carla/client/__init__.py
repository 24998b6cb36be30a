"""Process that holds CARLA's client library: some of its calls block the interpreter, and a fault may end the process.

It imports `carla`; the sim's own process does not.
"""
