"""Time of an inference tick with the steering in a graph of its own."""
