"""Real-time chunking end to end: a policy that knows its committed actions is cloned, judged late, tuned, exported."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from robotrl.api.evaluation import actor_of, compare, evaluate_path, latency_options, make_sim_of
from robotrl.cli.main import main
from robotrl.deploy.bundle.bundle import open_bundle
from robotrl.deploy.runtime import Controller
from robotrl.errors import ConfigError, DataError, NumericsError
from robotrl.fn.random.keyed_noise import KeyedNoise
from robotrl.rollout.evaluate import Episode, run_episodes
from robotrl.run.policy_checkpoint import load_policy
from robotrl.spec import COMMITTED, COMMITTED_MASK
from robotrl.transforms import Affine

D = 2


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small flow policy of `mujoco/reach`, cloned for delays of up to two steps."""
    folder = tmp_path_factory.mktemp("committed")
    assert main(["demos", "mujoco/reach", "--episodes", "8", "--out", str(folder / "demos")]) == 0
    arguments = (
        "train --sim mujoco/reach --sim.perturb.committed-steps 2 --algo bc --algo.updates 60 --policy flow"
        " --policy.hidden 32 --evaluation.every 0 --evaluation.episodes 4 --evaluation.animation 0"
    )
    assert main([*arguments.split(), "--dataset", str(folder / "demos"), "--run-dir", str(folder / "run")]) == 0
    return folder / "run"


def test_a_clone_scales_committed_actions_as_its_own(clone: Path) -> None:
    policy = load_policy(clone)
    steps = policy.observation_spec[COMMITTED_MASK].shape[0]
    assert steps == D
    scale = next(one for one in policy.transforms.inputs if isinstance(one, Affine) and one.key == COMMITTED)
    action = next(one for one in policy.transforms.outputs if isinstance(one, Affine))
    assert scale.scale == pytest.approx([1 / value for value in action.scale] * D)


def test_a_clone_continues_the_motion_under_way(clone: Path) -> None:
    """The prediction depends on the committed actions, and on the mask that says that there are any."""
    policy = load_policy(clone)
    obs = {key: torch.zeros(1, *spec.shape) for key, spec in policy.observation_spec.items()}
    plain = policy.act(obs, mode="mean").chunk
    obs[COMMITTED_MASK][:] = 1.0
    assert not torch.equal(policy.act(obs, mode="mean").chunk, plain)


def test_an_evaluation_delays_by_whole_periods(clone: Path) -> None:
    period_s = load_policy(clone).control_dt_s
    assert period_s is not None
    for latency, steps in ((0.0, 0), (0.4, 1), (1.0, 1), (1.2, 2)):
        options = latency_options(clone, None, {}, 1000 * latency * period_s)
        assert options["perturb"]["action_delay_steps"] == steps
        assert options["perturb"]["committed_steps"] == D
    late = latency_options(clone, None, {}, 2000 * period_s)
    assert len(evaluate_path(clone, episodes=4, options=late).ids) == 4
    with pytest.raises(ConfigError, match=r"3 control periods: expected at most 2 of them"):
        latency_options(clone, None, {}, 2500 * period_s)


def test_the_command_evaluates_late(clone: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "late.json"
    assert main(["eval", str(clone), "--episodes", "4", "--latency-ms", "30", "--report", str(file)]) == 0
    assert len(json.loads(file.read_text())["episodes"]) == 4
    assert main(["eval", str(clone), "--episodes", "4", "--latency-ms", "-1"]) == 2
    assert "--latency-ms is -1" in capsys.readouterr().err


def test_a_chain_method_fine_tunes_under_drawn_delays(clone: Path, tmp_path: Path) -> None:
    arguments = (
        "train --sim mujoco/reach --sim.num-envs 4 --sim.perturb.committed-steps 2 --sim.perturb.action-delay-steps 2"
        " --sim.perturb.draw-delay --algo reinflow --algo.env-steps 64 --algo.num-steps 16 --algo.minibatch 8"
        " --algo.epochs 1 --algo.critic-warmup-env-steps 0 --algo.engine eager --evaluation.every 0"
        " --evaluation.episodes 4 --evaluation.num-envs 4 --evaluation.animation 0"
    )
    run = tmp_path / "run"
    assert main([*arguments.split(), "--init-from", str(clone), "--run-dir", str(run)]) == 0
    first = json.loads((run / "scalars.jsonl").read_text().splitlines()[0])
    assert first["pg_loss"] != 0.0
    # sampler and likelihood see the same committed actions
    assert first["ratio_error"] < 1e-4
    assert load_policy(run).observation_spec.keys() == load_policy(clone).observation_spec.keys()


def recorded(path: Path, options: dict[str, Any], guided_steps: int = 0, late_steps: int = 0) -> Episode:
    """An episode of the policy at a path."""
    sim = make_sim_of(path, "mujoco/reach", num_envs=1, seed=0, options=options)
    try:
        actor = actor_of(path, sim, 0, guided_steps=guided_steps, late_steps=late_steps)
        return run_episodes(actor, sim, sim.state_ids("test")[:1], record=True)[0]
    finally:
        sim.close()


def executed(path: Path, options: dict[str, Any], guided_steps: int = 0, late_steps: int = 0) -> np.ndarray:
    """Actions of the first steps of such an episode."""
    return recorded(path, options, guided_steps, late_steps).actions[:20]


@pytest.fixture(scope="module")
def bundle(clone: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The clone as a bundle."""
    out = tmp_path_factory.mktemp("bundle") / "reach.bundle"
    assert main(["export", str(clone), "--out", str(out)]) == 0
    return out


def test_a_bundle_has_the_committed_actions_as_inputs_that_the_runtime_supplies(bundle: Path) -> None:
    manifest = open_bundle(bundle).manifest
    assert manifest.schema_version == 2
    assert (manifest.timing.rtc_mode, manifest.timing.rtc_max_delay_steps) == ("trained", D)
    assert [(port.name, port.role) for port in manifest.prefix] == [
        (COMMITTED, "prefix"),
        (COMMITTED_MASK, "prefix_mask"),
    ]
    assert not {COMMITTED, COMMITTED_MASK} & {port.name for port in manifest.observations}


def test_a_controller_without_committed_actions_has_no_delay(bundle: Path, clone: Path) -> None:
    controller, policy = Controller.load(bundle), load_policy(clone)
    rows = {port.name: np.full(port.shape, 0.1, np.float32) for port in controller.manifest.observations}
    spec = controller.manifest.sampler.noise_shape
    assert spec is not None
    late = {COMMITTED: np.full(policy.observation_spec[COMMITTED].shape, 0.2, np.float32), COMMITTED_MASK: np.ones(D)}
    plain, joined, again = (controller.infer(obs, 0) for obs in (rows, rows | late, rows))
    assert np.array_equal(plain, again) and not np.array_equal(plain, joined)
    none = {name: np.zeros_like(array) for name, array in late.items()}
    assert np.array_equal(controller.infer(rows | none, 0), plain)
    assert np.array_equal(controller.step(rows), plain[0])
    with pytest.raises(ConfigError, match=r"committed actions 'committed_mask' are missing: expected shape \(2,\)"):
        controller.infer(rows | {COMMITTED: late[COMMITTED]}, 0)
    with pytest.raises(NumericsError, match="committed actions 'committed_actions' are not finite"):
        controller.infer(rows | late | {COMMITTED: np.full_like(late[COMMITTED], np.nan)}, 0)
    with pytest.raises(ConfigError, match="observation 'committed_actions' is unknown"):
        controller.step(rows | late)


def test_policy_and_bundle_agree_under_latency(bundle: Path, clone: Path) -> None:
    late = latency_options(bundle, None, {}, 2000 * open_bundle(bundle).manifest.timing.control_period_s)
    assert late["perturb"]["action_delay_steps"] == late["perturb"]["committed_steps"] == D
    assert compare(clone, bundle, episodes=4, options=late).flipped == []
    assert np.allclose(executed(clone, late), executed(bundle, late), atol=1e-4)


def test_an_edited_manifest_is_refused(bundle: Path, tmp_path: Path) -> None:
    for name, field, value, said in (
        ("version", ("schema_version",), 1, "schema_version is 1: expected 2 or more"),
        ("mode", ("timing", "rtc_mode"), "guided", "overlap of guided chunks"),
        ("none", ("timing", "rtc_mode"), "none", "rtc_max_delay_steps is 2: expected 0"),
        ("delay", ("timing", "rtc_max_delay_steps"), 1, "shape is"),
    ):
        copy = tmp_path / name
        shutil.copytree(bundle, copy)
        data = json.loads((copy / "manifest.json").read_text())
        at = data
        for key in field[:-1]:
            at = at[key]
        at[field[-1]] = value
        (copy / "manifest.json").write_text(json.dumps(data))
        with pytest.raises(DataError, match=said):
            open_bundle(copy)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small flow policy of `mujoco/reach` that knows no committed actions."""
    folder = tmp_path_factory.mktemp("plain")
    assert main(["demos", "mujoco/reach", "--episodes", "8", "--out", str(folder / "demos")]) == 0
    arguments = (
        "train --sim mujoco/reach --algo bc --algo.updates 60 --policy flow --policy.horizon 6 --policy.hidden 32"
        " --evaluation.every 0 --evaluation.episodes 4 --evaluation.animation 0"
    )
    assert main([*arguments.split(), "--dataset", str(folder / "demos"), "--run-dir", str(folder / "run")]) == 0
    return folder / "run"


def test_a_guided_bundle_does_what_the_guided_policy_does(plain: Path, tmp_path: Path) -> None:
    bundle = tmp_path / "guided.bundle"
    assert main(["export", str(plain), "--guided-steps", "2", "--out", str(bundle)]) == 0
    timing = open_bundle(bundle).manifest.timing
    assert (timing.rtc_mode, timing.chunk_length, timing.execute, timing.rtc_max_delay_steps) == ("guided", 6, 4, 2)
    for delay in (0, 2):
        late = latency_options(bundle, None, {}, 1000 * delay * timing.control_period_s)
        assert late["perturb"]["action_delay_steps"] == delay and late["perturb"]["committed_steps"] == 2
        assert len(evaluate_path(plain, episodes=4, options=late, guided_steps=2).ids) == 4
        guided = executed(plain, late, guided_steps=2)
        assert np.allclose(guided, executed(bundle, late), atol=1e-4)
        assert np.abs(guided - executed(plain, late)).max() > 0.01


def test_plain_chunks_leave_out_what_has_passed(plain: Path) -> None:
    """Of chunks of 6 actions 2 belong to the past when a chunk takes over: the next decision is 4 steps later."""
    late = latency_options(plain, None, {}, 2000 * (load_policy(plain).control_dt_s or 0.0))
    assert late["perturb"]["action_delay_steps"] == 2 and late["perturb"]["committed_steps"] == 0
    found = recorded(plain, late, late_steps=2)
    sim = make_sim_of(plain, "mujoco/reach", num_envs=1, seed=0, options=late)
    start = sim.state_ids("test")[:1]
    sim.close()
    policy = load_policy(plain)
    for decision in range(3):
        # a decision is made on the batch that an evaluation has
        rows = {key: torch.from_numpy(x[4 * decision]).expand(64, *x.shape[1:]) for key, x in found.obs.items()}
        noise = KeyedNoise(0, np.asarray(start), np.array([decision]), 63)
        with torch.no_grad():
            chunk = policy.act(rows, None, noise, policy.deploy_mode).chunk[0].numpy()
        assert np.array_equal(found.actions[4 * decision : 4 * decision + 4], chunk[2:])


def test_a_bundle_joins_plain_chunks_as_its_policy_does(plain: Path, tmp_path: Path) -> None:
    bundle = tmp_path / "plain.bundle"
    assert main(["export", str(plain), "--out", str(bundle)]) == 0
    late = latency_options(bundle, None, {}, 2000 * open_bundle(bundle).manifest.timing.control_period_s)
    joined = executed(plain, late, late_steps=2)
    assert np.allclose(joined, executed(bundle, late, late_steps=2), atol=1e-4)
    assert not np.allclose(joined, executed(plain, late), atol=1e-3)
    assert compare(plain, bundle, episodes=4, options=late, late_steps=2).flipped == []
    # the whole chunk has passed when it comes, so that it is executed late
    assert np.array_equal(executed(plain, late, late_steps=6), executed(plain, late))


def test_chunks_that_know_what_is_committed_are_executed_whole(clone: Path) -> None:
    late = latency_options(clone, None, {}, 2000 * (load_policy(clone).control_dt_s or 0.0))
    assert np.array_equal(executed(clone, late, late_steps=2), executed(clone, late))


def test_the_command_joins_plain_chunks(plain: Path, tmp_path: Path) -> None:
    file = tmp_path / "late.json"
    latency = 2000 * (load_policy(plain).control_dt_s or 0.0)
    flags = ["--episodes", "4", "--latency-ms", str(latency), "--sim.reward", "shaped"]
    assert main(["eval", str(plain), *flags, "--report", str(file)]) == 0
    returns = [one["return"] for one in json.loads(file.read_text())["episodes"]]
    late = latency_options(plain, None, {"reward": "shaped"}, latency)
    for steps, same in ((2, True), (0, False)):
        assert (evaluate_path(plain, episodes=4, options=late, late_steps=steps).returns.tolist() == returns) == same


def test_the_command_evaluates_guided_chunks(plain: Path, clone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", str(plain), "--episodes", "4", "--guided-steps", "2", "--latency-ms", "30"]) == 0
    assert "success" in capsys.readouterr().out
    assert main(["eval", str(plain), "--episodes", "4", "--guided-steps", "6"]) == 2
    assert "overlap is 6: expected a whole number from 1 to 5" in capsys.readouterr().err
    assert main(["eval", str(clone), "--episodes", "4", "--guided-steps", "2"]) == 2
    assert "was trained with its committed actions" in capsys.readouterr().err
