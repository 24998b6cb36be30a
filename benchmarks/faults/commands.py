"""Arguments of `robotrl train` that inputs begin with."""

REACH_PPO = ["--sim", "mujoco/reach", "--sim.reward", "shaped", "--algo", "ppo", "--policy", "gaussian"]
REACH_BC = ["--sim", "mujoco/reach", "--algo", "bc"]
PEG_PPO = ["--sim", "mujoco/peg-insert", "--sim.reward", "shaped", "--algo", "ppo"]
PEG_BC = ["--sim", "mujoco/peg-insert", "--algo", "bc"]
PEG_SAC = ["--sim", "mujoco/peg-insert", "--algo", "sac"]
