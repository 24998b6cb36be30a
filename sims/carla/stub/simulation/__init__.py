"""What the stub simulates: a map, actors on it, their motion, lights and sensors."""
