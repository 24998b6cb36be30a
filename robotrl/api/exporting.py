"""Exports a run to a bundle; the exporter's arguments are taken from the run and its sim."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch

from robotrl.api.evaluation import latency_options, make_sim_of, run_of, with_guidance
from robotrl.deploy.bundle.manifest import Training
from robotrl.deploy.export import OBSERVATIONS_FILE, SAMPLES, ExportReport
from robotrl.deploy.export import export as export_policy
from robotrl.errors import ConfigError
from robotrl.policies.guarded import GuardedPolicy
from robotrl.policies.steered import weights_sha256
from robotrl.registry import sim_options
from robotrl.rollout.compatibility import check_fit
from robotrl.rollout.evaluate import PolicyActor, Turn, run_episodes
from robotrl.rollout.finite import check_finite
from robotrl.run.policy_checkpoint import find_checkpoint, load_policy
from robotrl.spec import HasStateIds, Policy, VecSim
from robotrl.spec.actuation import HasActuation
from robotrl.spec.sim_options import changed_fields
from robotrl.utils.files import read_json


def export(run_or_policy: Any, path: str | os.PathLike[str], **options: Any) -> ExportReport:
    """Export a policy, or a run or checkpoint on the disk, to a bundle.

    For a run, missing arguments are filled in: the control period from its sim, and the kind, default pose and gains of
    the actions where the sim states them; the observations for the parity check from its `observations.safetensors`,
    or by running the policy on validation starts; and the run's identity.

    Args:
        run_or_policy: a policy, or the path of a run (its best checkpoint is taken) or checkpoint.
        path: the bundle's directory; made atomically.
        options: keyword arguments of `robotrl.deploy.export.export`; `sim`, the name of the sim if the run has none;
            `guided_steps`, the overlap of chunks that continue the ones before (`GuidedPolicy`); and `reflex`, the path
            of a run of --algo reflex beside this policy, whose risk critic the servo evaluates.

    Raises:
        ConfigError: an argument is out of range, the target exists, the sim is unknown, or the reflex learned beside
            another policy.
        DataError: the run or checkpoint is damaged, or holds no policy.
        NumericsError: the graph does not compute what the policy does; nothing is left behind.
    """
    sim_name, guided_steps = options.pop("sim", None), options.pop("guided_steps", 0)
    if isinstance(reflex := options.pop("reflex", None), str | os.PathLike):
        options["reflex"] = reflex_beside(run_or_policy, Path(reflex))
    if not isinstance(run_or_policy, str | os.PathLike):
        if sim_name is not None:
            raise ConfigError("sim is given beside a policy: expected it only beside a path")
        return export_policy(with_guidance(run_or_policy, guided_steps), path, **options)
    source = Path(run_or_policy)
    samples = options.get("samples", SAMPLES)
    policy = with_guidance(load_policy(source), guided_steps)
    options.setdefault("training", identity(source, policy))
    # the run's own observations lack what guides a chunk
    recorded = "observations" in options or (not guided_steps and (source / OBSERVATIONS_FILE).is_file())
    if "control_dt_s" not in options or not recorded:
        late = {}
        if guided_steps:
            late = latency_options(source, sim_name, {}, 0.0, guided_steps)
            late["perturb"] |= {"action_delay_steps": guided_steps, "draw_delay": True}
        sim = make_sim_of(source, sim_name, num_envs=32, seed=0, options=late)
        try:
            options.setdefault("control_dt_s", sim.control_dt_s)
            if isinstance(sim, HasActuation) and sim.actuation is not None:
                options.setdefault("actuation", sim.actuation)
                options.setdefault("action_kind", sim.actuation.kind)
            if not recorded:
                options["observations"] = record(policy, sim, samples)
        finally:
            sim.close()
    return export_policy(policy if "observations" in options else source, path, **options)


def reflex_beside(run_or_policy: Any, reflex: Path) -> GuardedPolicy:
    """The policy of a reflex's run, whose critic learned beside the given policy.

    Args:
        run_or_policy: the task policy, or the path of its run or checkpoint.
        reflex: path of the reflex's run or checkpoint; of a run the newest critic is taken.

    Raises:
        ConfigError: there is no reflex at the path, or it learned beside another policy.
        DataError: a run or checkpoint is damaged, or holds no policy.
    """
    found = load_policy(reflex, "latest")
    if not isinstance(found, GuardedPolicy):
        raise ConfigError(f"reflex {str(reflex)!r} holds a {type(found).__name__}: expected a run of --algo reflex")
    given = load_policy(Path(run_or_policy)) if isinstance(run_or_policy, str | os.PathLike) else run_or_policy
    task = given.base if isinstance(given, GuardedPolicy) else given
    own, other = weights_sha256(task), weights_sha256(found.base)
    if own != other:
        raise ConfigError(
            f"reflex {str(reflex)!r} learned beside a policy with weights {other[:12]}: expected {own[:12]}, those of"
            " the exported one, whose actions its risk is about"
        )
    return found


def record(policy: Policy, sim: VecSim, samples: int) -> dict[str, np.ndarray]:
    """Record observations from the policy's own episodes on validation starts, or on any where they have no numbers.

    Args:
        policy: the policy that acts.
        sim: the sim.
        samples: minimum number of observations.

    Returns:
        One array (n, ...) for each key that the policy reads, n at least `samples`.

    Raises:
        ConfigError: the policy is not for this sim.
        NumericsError: the sim or the policy gave a number that is not finite.
    """
    check_fit(policy, sim)
    if not isinstance(sim, HasStateIds):
        return _record_unnumbered(policy, sim, samples)
    ids = sim.state_ids("val")
    found: dict[str, list[np.ndarray]] = {key: [] for key in policy.observation_spec}
    count = first = 0
    while count < samples:
        # the length of episodes is known after the first ones: all others run at once
        rounds = -(-(samples - count) * first // (count * sim.num_envs)) if count else 1
        batch = ids[first : first + rounds * sim.num_envs]
        if not batch:
            raise ConfigError(f"samples is {samples}: the validation starts give only {count}")
        first += len(batch)
        actor = PolicyActor(policy, sim.num_envs, sim.device, None, seed=0)
        for episode in run_episodes(actor, sim, batch, record=True, description="observations for the proof"):
            for key, rows in found.items():
                rows.append(episode.obs[key])
            count += len(episode.actions) + 1
    return {key: np.concatenate(parts) for key, parts in found.items()}


def _record_unnumbered(policy: Policy, sim: VecSim, samples: int) -> dict[str, np.ndarray]:
    """Record `samples` observations or more, each env's one after another, from episodes as the sim starts them."""
    n = sim.num_envs
    actor = PolicyActor(policy, n, sim.device, None, seed=0)
    # numbers of the episodes, which key the policy's noise
    episode = torch.arange(n, device=sim.device)
    obs, started = sim.reset(seed=0), torch.ones(n, dtype=torch.bool, device=sim.device)
    found: dict[str, list[np.ndarray]] = {key: [] for key in policy.observation_spec}
    for step_index in range(-(-samples // n)):
        for key, rows in found.items():
            rows.append(obs[key].cpu().numpy().copy())
        step = sim.step(actor.act(obs, Turn(started, episode)))
        check_finite(step, step_index)
        obs, started = step.obs, step.terminated | step.truncated
        episode = episode + n * started
    return {key: np.stack(rows, axis=1).reshape(-1, *rows[0].shape[1:]) for key, rows in found.items()}


def identity(source: Path, policy: Any) -> Training:
    """Identity of the run behind a policy, for the bundle's manifest."""
    run = run_of(source)
    sim: dict[str, Any] = {} if run is None else run.config.get("sim", {})
    config = None if run is None else hashlib.sha256(json.dumps(run.config, sort_keys=True).encode()).hexdigest()
    return Training(
        policy=type(policy).__name__,
        run=None if run is None else run.path.name,
        step=find_checkpoint(source).step,
        seed=None if run is None else run.seed,
        git_revision=None if run is None else read_json(run.path / "git.json", "run git state", 1).get("commit"),
        config_sha256=config,
        reward_scale=getattr(policy, "reward_scale", None),
        sim=sim.get("name"),
        sim_options=_shown_options(sim) if sim else (),
    )


def _shown_options(sim: dict[str, Any]) -> tuple[str, ...]:
    """Options of a run's sim, "name=value", but for the defaults and those that name files of the machine."""
    options = changed_fields(sim_options(sim["name"], sim.get("options")), sim_options(sim["name"]))
    texts = (f"{name}={json.dumps(value)}" for name, value in options.items())
    return tuple(text for text in texts if not {"/", "\\", "@"} & set(text))
