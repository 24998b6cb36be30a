"""The simulated world of the stub: a map, actors on it, their motion, lights and sensors."""
