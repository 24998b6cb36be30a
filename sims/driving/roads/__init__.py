"""Road networks: lanes, maps, procedural roads and routes."""
