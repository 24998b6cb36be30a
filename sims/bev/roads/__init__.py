"""Road networks: lanes, maps, procedural roads, routes."""
