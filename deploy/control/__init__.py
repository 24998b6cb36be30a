"""The real-time control loop: observe, infer, check, send."""
