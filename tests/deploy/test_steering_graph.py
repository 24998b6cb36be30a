"""Bundles whose steering is a graph of its own: exported, proved, switched off, served, on a robot, in a log."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import safetensors.numpy
import torch

import tests.kits.deploy_graphs as graphs
import tests.kits.deploy_kit as kit
from robotrl.api.inspection import describe
from robotrl.deploy.buffers import Runtime
from robotrl.deploy.bundle.bundle import open_bundle
from robotrl.deploy.control.log import read_log
from robotrl.deploy.control.replay import replay
from robotrl.deploy.control.run import run_control
from robotrl.deploy.export import export, parity_of
from robotrl.deploy.noise import CounterNoise
from robotrl.deploy.remote.controller import RemotePolicyCfg, remote_controller
from robotrl.deploy.runtime import Controller
from robotrl.errors import CapabilityError, ConfigError, DataError
from robotrl.policies.flow import FlowCfg
from robotrl.policies.steered import SteeredCfg, SteeredPolicy
from robotrl.transforms import TransformGroup
from tests.kits.deploy_cart import ACTION_SPEC, OBSERVATION_SPEC, PERIOD_S
from tests.kits.real_time import undisturbed
from tests.kits.serve_kit import served

CART = "sim:tests.kits.deploy_cart:make_cart"
CFG = SteeredCfg(bound=1.5, hidden=(16, 16))
HORIZON = 2


def policy(cfg: SteeredCfg = CFG) -> SteeredPolicy:
    """A flow policy, steered by an actor whose mean is far from 0."""
    torch.manual_seed(0)
    transforms = TransformGroup(kit.TinyFlow().transforms.inputs, kit.TinyFlow().transforms.outputs)
    base = FlowCfg(horizon=HORIZON, hidden=(16,), denoising_steps=2).build(OBSERVATION_SPEC, ACTION_SPEC, transforms)
    base.control_dt_s = PERIOD_S
    made = cfg.build(base)
    with torch.no_grad():
        made.actor.net.layers[-1].weight *= 30
    return made


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("steered") / "steered.bundle"
    export(policy(), path, observations=kit.recorded(), steer_graph=True)
    kit.wait_for_observations(path)
    return path


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundle of the base policy alone."""
    path = tmp_path_factory.mktemp("base") / "base.bundle"
    export(policy().base, path, observations=kit.recorded())
    return path


def observation(seed: int) -> dict[str, np.ndarray]:
    return {key: rows[0] for key, rows in kit.recorded(1, seed).items()}


def torch_chunk(trained: SteeredPolicy, seed: int, noise: np.ndarray | None) -> np.ndarray:
    obs = {key: torch.from_numpy(x)[None] for key, x in observation(seed).items()}
    with torch.no_grad():
        return trained.deploy(obs, None if noise is None else torch.from_numpy(noise)[None]).actions[0].numpy()


# the bundle


def test_the_policy_graph_is_that_of_the_base_byte_for_byte(bundle: Path, base: Path) -> None:
    steered, alone = open_bundle(bundle), open_bundle(base)
    assert steered.graph == alone.graph
    manifest = steered.manifest
    assert (manifest.schema_version, manifest.sampler.noise_policy, manifest.graphs.steer) == (5, "steer", "steer.onnx")
    assert manifest.steer is not None and (manifest.steer.bound, manifest.steer.draws) == (1.5, True)
    assert alone.manifest.schema_version == 2 and "steer" not in alone.manifest.to_json()
    assert set(manifest.files) == {"policy.onnx", "steer.onnx", "golden.safetensors"}
    chosen = steered.golden.steered_noise
    assert chosen is not None and np.abs(chosen).max() <= 1.5
    assert np.abs(chosen - steered.golden.noise).max() > 0.5
    assert "--no-steer" in describe(bundle).rows["steering"]


def test_both_graphs_together_are_the_steered_policy(bundle: Path, runtime: Runtime) -> None:
    controller, trained = Controller.load(bundle, seed=3, runtime=runtime), policy()
    assert controller.engine == ("native" if runtime == "native" else "onnxruntime")
    noise = CounterNoise((HORIZON, 2), 3)
    for seed in range(20):
        wanted = torch_chunk(trained, seed, noise.draw(seed))
        assert np.abs(controller.infer(observation(seed), seed) - wanted).max() < 1e-5
    if runtime == "python":
        assert parity_of(cast("Any", trained), open_bundle(bundle), kit.recorded(50)).max_rel < 1e-5


def test_without_steering_it_is_the_base_bit_for_bit(bundle: Path, base: Path, runtime: Runtime) -> None:
    off = Controller.load(bundle, seed=3, runtime=runtime, steer=False)
    alone = Controller.load(base, seed=3, runtime=runtime)
    on = Controller.load(bundle, seed=3, runtime=runtime)
    for seed in range(20):
        chunk = off.infer(observation(seed), seed)
        assert chunk.tobytes() == alone.infer(observation(seed), seed).tobytes()
        assert np.abs(chunk - on.infer(observation(seed), seed)).max() > 0
    with pytest.raises(ConfigError, match=r"this bundle has no steering graph, expected one .* --steer-graph"):
        Controller.load(base, runtime=runtime, steer=False)


def test_a_mean_is_a_function_of_the_observation(tmp_path: Path, runtime: Runtime) -> None:
    trained = policy(replace(CFG, deploy="mean"))
    export(trained, tmp_path / "mean.bundle", observations=kit.recorded(), steer_graph=True)
    one, two = (Controller.load(tmp_path / "mean.bundle", seed=seed, runtime=runtime) for seed in (1, 2))
    off = [Controller.load(tmp_path / "mean.bundle", seed=seed, runtime=runtime, steer=False) for seed in (1, 2)]
    for seed in range(5):
        chunk = one.infer(observation(seed), seed)
        assert chunk.tobytes() == two.infer(observation(seed), seed + 1).tobytes()
        assert np.abs(chunk - torch_chunk(trained, seed, None)).max() < 1e-5
        assert np.abs(off[0].infer(observation(seed), 0) - off[1].infer(observation(seed), 0)).max() > 0


def test_one_graph_is_the_default(tmp_path: Path) -> None:
    export(policy(), tmp_path / "fused.bundle", observations=kit.recorded())
    manifest = open_bundle(tmp_path / "fused.bundle").manifest
    assert (manifest.schema_version, manifest.graphs.steer, manifest.sampler.noise_policy) == (2, None, "counter")


def test_a_policy_that_is_not_steered_has_no_such_graph(tmp_path: Path) -> None:
    with pytest.raises(CapabilityError, match="policy TinyFlow has no steering: expected a run of --algo dsrl"):
        export(kit.TinyFlow(), tmp_path / "b", observations=kit.recorded(), steer_graph=True)
    quiet = policy()
    quiet.base.deploy_noise = 0.5
    with pytest.raises(CapabilityError, match=r"deploy_noise is 0.5: expected 1 of a policy with a steering graph"):
        export(quiet, tmp_path / "b", observations=kit.recorded(), steer_graph=True)
    assert not (tmp_path / "b").exists()


# what is proved on the target


@pytest.mark.parametrize("steer", [True, False])
def test_both_graphs_are_proved_apart(bundle: Path, tmp_path: Path, runtime: Runtime, steer: bool) -> None:
    damaged = Path(shutil.copytree(bundle, tmp_path / "bundle"))
    golden = safetensors.numpy.load_file(damaged / "golden.safetensors")
    moved = golden["steered_noise"].copy()
    golden["steered_noise"][70, 1, 0] += 0.01
    (damaged / "golden.safetensors").write_bytes(safetensors.numpy.save(golden))
    graphs.reseal(damaged)
    # the steering graph chose otherwise than recorded; without it the policy graph finds another action
    named = r"tick 70, steered_noise\[1\]" if steer else "tick 70, actions"
    with pytest.raises(DataError, match=named):
        Controller.load(damaged, runtime=runtime, steer=steer)
    golden["steered_noise"] = moved
    golden["actions"][71, 0, 0] += 0.01
    (damaged / "golden.safetensors").write_bytes(safetensors.numpy.save(golden))
    graphs.reseal(damaged)
    with pytest.raises(DataError, match="tick 71, actions"):
        Controller.load(damaged, runtime=runtime, steer=steer)


def test_another_steering_graph_is_refused_by_its_hash_and_its_ticks(bundle: Path, tmp_path: Path) -> None:
    torch.manual_seed(5)
    other = policy()
    with torch.no_grad():
        other.actor.net.layers[0].weight.mul_(-1)
    export(other, tmp_path / "other.bundle", observations=kit.recorded(), steer_graph=True)
    swapped = Path(shutil.copytree(bundle, tmp_path / "bundle"))
    shutil.copy(tmp_path / "other.bundle" / "steer.onnx", swapped / "steer.onnx")
    with pytest.raises(DataError, match=r"'steer.onnx' has SHA-256"):
        open_bundle(swapped)
    graphs.reseal(swapped)
    with pytest.raises(DataError, match="steered_noise"):
        Controller.load(swapped)
    Controller.load(swapped, steer=False)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: data.update(schema_version=4), "schema_version is 4: expected 5 or more, with a steering graph"),
        (lambda data: data.pop("steer"), "a graph exactly where there is steering"),
        (lambda data: data["sampler"].update(noise_policy="counter"), "'steer' with a steering graph"),
        (lambda data: data["steer"].update(bound=0.0), "steer.bound is 0.0: expected more than 0"),
        (lambda data: data["steer"].update(draws=False), None),
    ],
)
def test_a_manifest_that_contradicts_itself_is_refused(
    bundle: Path, tmp_path: Path, change: Any, message: str | None
) -> None:
    damaged = Path(shutil.copytree(bundle, tmp_path / "bundle"))
    graphs.reseal(damaged, change)
    if message is None:
        # only the graph can tell that it draws
        with pytest.raises(DataError, match="the graph's inputs are"):
            Controller.load(damaged)
        return
    with pytest.raises(DataError, match=message):
        open_bundle(damaged)


# on a robot


@undisturbed
@pytest.mark.parametrize("steer", [True, False])
def test_on_a_robot_its_log_is_replayed_bit_for_bit(
    bundle: Path, tmp_path: Path, runtime: Runtime, steer: bool
) -> None:
    log = tmp_path / "log.jsonl"
    report = run_control(bundle, CART, episodes=1, limit_s=1.0, seed=4, log=log, runtime=runtime, steer=steer)
    assert report.safety.held == 0
    assert read_log(log)[0]["steer"] is steer
    found = replay(log, bundle)
    assert found.ticks > 20 and found.decisions > 5
    assert (found.policy_max_abs, found.sent_max_abs, found.verdicts_differ) == (0, 0, 0)
    # with steering the other way it is another policy
    lines = log.read_text().splitlines()
    header = {**json.loads(lines[0]), "steer": not steer}
    log.write_text("\n".join([json.dumps(header), *lines[1:], ""]))
    assert replay(log, bundle).policy_max_abs > 0


def test_a_robot_without_steering_needs_a_graph_and_no_server(bundle: Path, base: Path) -> None:
    with pytest.raises(ConfigError, match="this bundle has no steering graph"):
        run_control(base, CART, steer=False)
    with pytest.raises(ConfigError, match=r"the policy server ws://127\.0\.0\.1:1 steers, expected an inference here"):
        run_control(bundle, CART, steer=False, remote=RemotePolicyCfg("ws://127.0.0.1:1"))


def test_a_server_steers(bundle: Path) -> None:
    here = Controller.load(bundle, seed=6)
    with served(bundle) as server, remote_controller(bundle, RemotePolicyCfg(server.url), seed=6) as remote:
        assert remote.golden_error == 0
        for seed in range(3):
            assert remote.infer(observation(seed), seed).tobytes() == here.infer(observation(seed), seed).tobytes()
