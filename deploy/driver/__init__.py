"""A bundle as the driver of a driving simulator that speaks AlpaSim's contract (`egodriver.EgodriverService`, gRPC)."""
