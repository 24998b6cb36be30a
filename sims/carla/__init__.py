"""Adapter for CARLA servers, under the names `carla/...`; see docs/sims/carla.md."""
