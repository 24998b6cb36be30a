"""Presets that are gone, and the commands that replace them: a preset is a tuned recipe, not a pair of names."""

from __future__ import annotations

_OFFLINE = "--sim mujoco/peg-insert --algo"

_ARGUMENTS = {
    "drive-bc": "--sim bev/drive --sim.polylines 0 --algo bc --algo.updates 6000 --policy gaussian"
    " --policy.hidden 256 256",
    "halfcheetah-sac": "--sim mujoco/halfcheetah --algo sac --algo.env-steps 300000",
    "hopper-sac": "--sim mujoco/hopper --algo sac --algo.env-steps 300000",
    "peg-insert-bc-diffusion": "--sim mujoco/peg-insert --algo bc --policy diffusion",
    "peg-insert-bc-flow": "--sim mujoco/peg-insert --algo bc --algo.updates 800",
    "peg-insert-bc-gaussian": "--sim mujoco/peg-insert --algo bc --policy gaussian --algo.updates 800",
    "peg-insert-bc-shortcut": "--sim mujoco/peg-insert --algo bc --policy shortcut --algo.updates 1200",
    "peg-insert-dppo": "--sim mujoco/peg-insert --algo dppo",
    "peg-insert-flow-noise": "--sim mujoco/peg-insert --algo flow-noise",
    "peg-insert-flow-sde": "--sim mujoco/peg-insert --algo flow-sde",
    "peg-insert-fql": f"{_OFFLINE} fql --algo.updates 10000 --algo.batch 128 --algo.flow-steps 4",
    "peg-insert-iql": f"{_OFFLINE} iql",
    "peg-insert-ppo": "--sim mujoco/peg-insert --sim.reward shaped --algo ppo --policy gaussian",
    "peg-insert-sac": "--sim mujoco/peg-insert --algo sac --sim.num-envs 8 --policy.horizon 4 --policy.hidden 128 128"
    " --algo.env-steps 100000 --algo.num-steps 4 --algo.warmup 1000 --algo.utd-ratio 2 --algo.batch 128"
    " --algo.initial-alpha 0.01 --algo.num-critics 4 --algo.critic-hidden 128 128 --algo.layer-norm",
    "peg-insert-td3-bc": f"{_OFFLINE} td3-bc --algo.alpha 0.1 --policy.horizon 4",
    "pick-place-bc-diffusion": "--sim mujoco/pick-place --algo bc --policy diffusion --algo.updates 2000",
    "pick-place-bc-flow": "--sim mujoco/pick-place --algo bc --algo.updates 2000",
    "pick-place-bc-shortcut": "--sim mujoco/pick-place --algo bc --policy shortcut --algo.updates 2000",
    "push-bc-diffusion": "--sim mujoco/push --algo bc --policy diffusion --algo.updates 2000",
    "push-bc-flow": "--sim mujoco/push --algo bc --algo.updates 2000",
    "push-bc-shortcut": "--sim mujoco/push --algo bc --policy shortcut --algo.updates 2000",
    "push-ppo": "--sim mujoco/push --sim.reward shaped --algo ppo --policy gaussian",
    "reach-bc-flow": "--sim mujoco/reach --algo bc --algo.updates 800",
    "reach-ppo": "--sim mujoco/reach --sim.reward shaped --algo ppo --policy gaussian",
    "reach-rlpd": "peg-insert-rlpd --sim mujoco/reach --algo.env-steps 20000",
    "tabletop-bc-vlm": "tabletop-bc-token --algo.lr 2e-4 --algo.muon 0 --algo.grounding-coef 0",
    "tabletop-dsrl": "tabletop-grpo --algo dsrl --policy steered --sim.num-envs 16 --algo.engine eager",
    "tabletop-flow-sde": "tabletop-reinflow --sim.reward sparse --algo flow-sde --algo.minibatch 240 --algo.scale 0.2"
    " --algo.start-noise 0 --algo.engine eager",
    "tabletop-grpo-return": "tabletop-grpo --sim.reward shaped --algo.iterations 80 --algo.progress return"
    " --algo.keep-by reward",
    "tabletop-look": "tabletop-vision",
    "tabletop-look-flow": "tabletop-vision --policy flow-vla --policy.deploy-noise 0",
    "tabletop-opd": "tabletop-grpo --algo opd --algo.iterations 100 --algo.lr 2e-4 --algo.muon 2.5 --algo.ema 0.98",
    "tabletop-read": "tabletop-grounding",
    "tabletop-read-flow": "tabletop-grounding",
    "tabletop-srpo": "tabletop-grpo --algo.progress embedding --algo.keep-by reward",
    "tabletop-srpo-places": "tabletop-grpo --algo.progress embedding --algo.keep-by reward"
    " --algo.encoder places:state,meant --algo.embed end",
    "tabletop-vla-rl": "tabletop-grpo --algo vla-rl",
}

REMOVED_PRESETS = {name: f"robotrl train {arguments}" for name, arguments in _ARGUMENTS.items()}
"""Removed preset to the command that trains the same."""
