"""A stand-in for a CARLA 0.9.16 server, with which the genuine client library works; see docs/sims/carla.md.

The stub speaks the protocol of the server (msgpack-rpc, and frames over streaming sockets), moves actors by simple
kinematics on any OpenDRIVE map, and misbehaves on request. It renders no scenes and is no simulator: it exists for
tests, for benches of what stands between a policy and the server, and for trying things without a GPU.
"""
