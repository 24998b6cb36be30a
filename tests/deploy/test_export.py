"""Export: parity with torch, refusals, and nothing left behind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import tests.kits.deploy_kit as kit
import tests.kits.serve_kit as serve_kit
from robotrl.deploy.bundle.bundle import open_bundle
from robotrl.deploy.bundle.describe import SafetyOptions
from robotrl.deploy.export import export, parity_of
from robotrl.deploy.runtime import Controller
from robotrl.errors import CapabilityError, ConfigError, DataError, NumericsError
from robotrl.run.policy_checkpoint import changed
from robotrl.spec import Spec
from robotrl.transforms import Affine, Clip, TransformGroup
from tests.kits.paths_kit import ROOT
from tests.kits.policy_kit import make_policy
from tests.kits.policy_kit import observations as policy_observations


def test_parity_is_reported_and_stored(tmp_path_factory: pytest.TempPathFactory) -> None:
    path, report = kit.made("flow", tmp_path_factory.getbasetemp())
    assert report.samples == 1024
    assert 0 <= report.parity_max_rel < 1e-6
    assert report.golden_ticks == 264
    manifest = open_bundle(path).manifest
    assert manifest.parity.max_abs == report.parity_max_abs
    assert manifest.bundle_id == report.bundle_id
    assert manifest.training.policy == "TinyFlow"


def test_a_bundle_names_no_file_of_the_machine_that_made_it(tmp_path_factory: pytest.TempPathFactory) -> None:
    path = kit.made("flow", tmp_path_factory.getbasetemp())[0]
    for file in path.iterdir():
        held = file.read_bytes()
        assert b"site-packages" not in held and str(ROOT).encode() not in held, file.name


def test_the_golden_ticks_hold_the_edges(tmp_path_factory: pytest.TempPathFactory) -> None:
    golden = open_bundle(kit.made("flow", tmp_path_factory.getbasetemp())[0]).golden
    state = golden.observations["state"]
    observed = kit.recorded()["state"]
    assert (state[:3] == 0).all()
    # Where the spec has no bound (element 1), the extreme of the record stands for it.
    assert state[3].tolist() == np.float32([-1.0, observed[:, 1].min(), -1.0, -2.0]).tolist()
    assert state[6].tolist() == np.float32([1.0, observed[:, 1].max(), 1.0, 2.0]).tolist()
    assert (state[64:] == observed[:200]).all()
    assert golden.noise is not None
    assert (golden.noise[0] == 0).all()
    assert len(np.unique(golden.noise[64:, 0, 0])) == 200


def test_the_bundle_answers_as_the_policy(tmp_path_factory: pytest.TempPathFactory) -> None:
    path = kit.made("flow", tmp_path_factory.getbasetemp())[0]
    policy = kit.TinyFlow()
    parity = parity_of(policy, open_bundle(path), kit.recorded(300, seed=5))
    assert parity.samples == 300
    assert parity.max_rel < 1e-6
    other = parity_of(kit.TinyFlow(seed=1), open_bundle(path), kit.recorded(300, seed=5))
    assert other.max_rel > 0.01


def test_a_policy_that_begins_without_noise_answers_the_same_whatever_it_is_given(tmp_path: Path) -> None:
    policy = changed(make_policy("flow"), {"deploy_noise": 0.0})
    policy.control_dt_s = 0.05
    recorded = policy_observations(1024)
    report = export(policy, tmp_path / "b", observations={key: x.numpy() for key, x in recorded.items()})
    assert report.parity_max_rel < 1e-6
    graph = open_bundle(tmp_path / "b")
    parity = parity_of(policy, graph, {key: x.numpy() for key, x in policy_observations(50, seed=7).items()})
    assert parity.max_rel < 1e-6
    assert graph.manifest.sampler.noise_shape == (3, 2)


class Divided(kit.TinyFlow):
    """Computes something else while it is exported than afterwards: what a parity check is for."""

    def deploy(self, obs: dict[str, Tensor], noise: Tensor | None) -> kit.Deployed:
        out = super().deploy(obs, noise)
        gain = 1.0 if torch.compiler.is_exporting() else 1.0 + 1e-3
        return kit.Deployed(out.actions * gain, out.normalized_action)


def test_a_graph_that_differs_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(NumericsError, match=r"parity: onnxruntime differs from torch by .* no bundle was written"):
        export(Divided(), tmp_path / "b", observations=kit.recorded())
    assert list(tmp_path.iterdir()) == []


def test_an_answer_that_is_not_finite_leaves_nothing_behind(tmp_path: Path) -> None:
    policy = kit.TinyFlow()
    policy.net[0].bias.data[3] = float("nan")
    with pytest.raises(NumericsError):
        export(policy, tmp_path / "b", observations=kit.recorded())
    assert list(tmp_path.iterdir()) == []


def test_an_existing_target_is_replaced_only_when_asked_and_only_if_it_is_a_bundle(tmp_path: Path) -> None:
    target = tmp_path / "b"
    target.mkdir()
    (target / "thesis.txt").write_text("years of work")
    policy = kit.TinyFlow(noisy=False)
    with pytest.raises(ConfigError, match="exists: expected a new name, or overwrite"):
        export(policy, target, observations=kit.recorded())
    with pytest.raises(ConfigError, match="is not a bundle: it will not be replaced"):
        export(policy, target, observations=kit.recorded(), overwrite=True)
    assert (target / "thesis.txt").read_text() == "years of work"
    (target / "thesis.txt").unlink()
    target.rmdir()
    first = export(policy, target, observations=kit.recorded())
    second = export(kit.TinyFlow(noisy=False, seed=3), target, observations=kit.recorded(), overwrite=True)
    assert first.bundle_id != second.bundle_id
    assert open_bundle(target).manifest.bundle_id == second.bundle_id
    assert [p.name for p in tmp_path.iterdir()] == ["b"]


def test_a_policy_without_noise(tmp_path: Path) -> None:
    report = export(kit.TinyFlow(noisy=False), tmp_path / "b", observations=kit.recorded())
    manifest = open_bundle(report.path).manifest
    assert manifest.sampler.kind == "none"
    assert manifest.sampler.noise_policy is None
    obs = {key: value[7] for key, value in kit.recorded().items()}
    one, two = Controller.load(report.path, seed=0), Controller.load(report.path, seed=9)
    assert one.step(obs).tolist() == two.step(obs).tolist()


def test_transforms_on_the_host_are_applied_once(tmp_path: Path) -> None:
    """The same policy, once all in the graph, once with its outer transforms left to the runtime."""
    inside, outside = kit.TinyFlow(), kit.TinyFlow()
    affine, clip = outside.transforms.outputs
    outside.transforms = TransformGroup(
        tuple(Affine(t.key, t.scale, t.offset, "host") for t in outside.transforms.inputs if isinstance(t, Affine)),
        (affine, Clip("action", clip.low, clip.high, "host")) if isinstance(clip, Clip) else (),
    )
    assert len(outside.transforms.outputs) == 2
    for name, policy in (("in", inside), ("out", outside)):
        export(policy, tmp_path / name, observations=kit.recorded())
    controllers = [Controller.load(tmp_path / name, seed=4) for name in ("in", "out")]
    for row in range(20):
        obs = {key: value[row] for key, value in kit.recorded().items()}
        first, second = (controller.step(obs) for controller in controllers)
        assert np.abs(first - second).max() < 1e-6
    mixed = kit.TinyFlow()
    mixed.transforms = TransformGroup((Affine("touch", (1.0,), (0.0,)), Affine("touch", (1.0,), (0.0,), "host")))
    with pytest.raises(ConfigError, match="'host' must come first"):
        export(mixed, tmp_path / "x", observations=kit.recorded())


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"observations": None}, "observations are missing"),
        ({"observations": {"state": kit.recorded()["state"]}}, "key 'touch' is missing"),
        ({"observations": {**kit.recorded(), "tuch": np.zeros((9, 1))}}, "did you mean 'touch'?"),
        ({"observations": kit.recorded(900)}, "has 900 rows: expected 1024 or more"),
        ({"observations": kit.recorded(), "samples": 10}, "samples is 10: expected 1000 or more"),
        ({"observations": kit.recorded(), "control_dt_s": 0.0}, "control_dt_s is 0.0"),
        (
            {"observations": kit.recorded(), "safety": SafetyOptions(max_observation_age_s=0.0)},
            "max_observation_age_s is 0.0: expected above 0, at most 10 s",
        ),
        (
            {"observations": kit.recorded(), "safety": SafetyOptions(neutral=(5.0, 0.0))},
            "safety.neutral of 'push' is 5.0",
        ),
    ],
)
def test_unusable_arguments_are_named(tmp_path: Path, arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        export(kit.TinyFlow(), tmp_path / "b", **arguments)
    assert says in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_unusable_policies_are_named(tmp_path: Path) -> None:
    with pytest.raises(CapabilityError, match="it lacks observation_spec"):
        export(torch.nn.Linear(1, 1), tmp_path / "b", observations=kit.recorded(), control_dt_s=0.1)
    with pytest.raises(ConfigError, match="policy is a int"):
        export(3, tmp_path / "b", observations=kit.recorded())
    endless = kit.TinyFlow()
    endless.action_spec = Spec((2,), ("push", "brake"), ("N", "1"), (-np.inf, -1.0), (2.0, 1.0))
    with pytest.raises(ConfigError, match="action 'push' is bounded by"):
        export(endless, tmp_path / "b", observations=kit.recorded())


def test_a_target_that_cannot_be_made_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"cannot be written: (File exists|Not a directory)"):
        export(kit.TinyFlow(noisy=False), tmp_path / "file" / "b", observations=kit.recorded())


EXPORTED = {
    "flow": ("flow", "euler"),
    "flow-residual": ("flow", "euler"),
    "flow-unet": ("flow", "euler"),
    "flow-transformer": ("flow", "euler"),
    "shortcut": ("flow", "euler"),
    "diffusion": ("diffusion", "ddim"),
    "diffusion-picture": ("diffusion", "ddim"),
    "gaussian": ("none", "none"),
    "gaussian-picture": ("none", "none"),
    "beta": ("none", "none"),
    "categorical": ("none", "none"),
    "beta-map": ("none", "none"),
}
"""Rows of `policy_kit.CFGS` and what the manifest says of their samplers: each kind, network and encoder."""


@pytest.mark.parametrize("name", EXPORTED)
def test_our_policies_export_with_parity(tmp_path: Path, name: str) -> None:
    policy = make_policy(name)
    if name.startswith("flow-"):
        policy = policy.with_steps(1)  # the exporter takes its time over each step
    observations = {key: value.numpy() for key, value in policy_observations(1000, policy=policy).items()}
    before = {key: value.clone() for key, value in policy.state_dict().items()}
    report = export(policy, tmp_path / "b", observations=observations, samples=1000, control_dt_s=0.05)
    assert report.parity_max_rel < 1e-5
    assert all((policy.state_dict()[key] == value).all() for key, value in before.items())
    assert policy.training
    manifest = open_bundle(report.path).manifest
    assert manifest.timing.chunk_length == 3
    assert (manifest.sampler.kind, manifest.sampler.solver) == EXPORTED[name]
    assert manifest.sampler.steps == getattr(policy, "denoising_steps", 0)
    controller = Controller.load(report.path)
    for row in range(9):
        # a picture comes as the camera gives it, in bytes
        action = controller.step({key: value[row] for key, value in observations.items()})
    assert controller.decision == 2
    assert action.shape == (2,)


def test_the_report_is_plain(tmp_path_factory: pytest.TempPathFactory) -> None:
    report = kit.made("flow", tmp_path_factory.getbasetemp())[1]
    assert json.loads(json.dumps(report.to_json()))["samples"] == 1024


def test_observations_may_be_older_where_actions_are_committed(tmp_path: Path) -> None:
    """Two control periods of 0.02 s, one more for each action that may be committed, or what is asked for."""
    plain = open_bundle(kit.made("flow", tmp_path)[0]).manifest.timing
    assert plain.max_observation_age_s == pytest.approx(2 * kit.PERIOD_S)
    trained = open_bundle(serve_kit.committed_bundle(tmp_path)).manifest.timing
    most = trained.rtc_max_delay_steps
    assert most > 0 and trained.max_observation_age_s == pytest.approx((2 + most) * trained.control_period_s)
    options = SafetyOptions(max_observation_age_s=0.3)
    export(kit.TinyFlow(), tmp_path / "asked", observations=kit.recorded(), safety=options)
    assert open_bundle(tmp_path / "asked").manifest.timing.max_observation_age_s == 0.3


class Echo(kit.TinyFlow):
    """A policy without noise that observes something of that name."""

    def __init__(self) -> None:
        super().__init__(noisy=False)
        self.observation_spec = {"noise": self.observation_spec["state"], "touch": self.observation_spec["touch"]}


def test_an_observation_named_noise_is_refused(tmp_path: Path) -> None:
    recorded = kit.recorded()
    with pytest.raises(ConfigError, match=r"'noise', .* are names of the graph's own"):
        export(Echo(), tmp_path / "b", observations={"noise": recorded["state"], "touch": recorded["touch"]})
