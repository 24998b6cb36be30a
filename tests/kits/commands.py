"""Arguments of `robotrl train` that several tests begin with."""

REACH_PPO = ["--sim", "mujoco/reach", "--sim.reward", "shaped", "--algo", "ppo", "--policy", "gaussian"]
REACH_BC = ["--sim", "mujoco/reach", "--algo", "bc"]
REACH_RLPD = ["peg-insert-rlpd", "--sim", "mujoco/reach"]
PEG_PPO = ["--sim", "mujoco/peg-insert", "--sim.reward", "shaped", "--algo", "ppo"]
PEG_BC = ["--sim", "mujoco/peg-insert", "--algo", "bc"]
PEG_BC_GAUSSIAN = [*PEG_BC, "--policy", "gaussian"]
PEG_SAC = ["--sim", "mujoco/peg-insert", "--algo", "sac"]
TABLETOP_VLA_RL = ["tabletop-grpo", "--algo", "vla-rl"]
TABLETOP_BC_VLM = ["tabletop-bc-token", "--algo.lr", "2e-4", "--algo.muon", "0", "--algo.grounding-coef", "0"]
TABLETOP_DSRL = ["tabletop-grpo", "--algo", "dsrl", "--policy", "steered"]
