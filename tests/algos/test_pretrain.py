"""Learning to look: the eyes learn and nothing else, what is held out is judged, a stopped run ends the same."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import tests.algos.test_grpo as grpo
import tests.kits.learner_kit as kit
import tests.policies.vla.test_flow as flows
from robotrl.algos import pretrain
from robotrl.algos.bc import BcCfg
from robotrl.algos.pretrain import PretrainCfg, PretrainLearner
from robotrl.config import EvalCfg, SimCfg, TrainCfg
from robotrl.datasets.reader import read_dataset
from robotrl.errors import CapabilityError, ConfigError
from robotrl.learners.learner import Setup
from robotrl.policies.vla.token import TokenVlaCfg
from robotrl.rollout.demos import collect_demos
from robotrl.spec import HasImageFeatures
from robotrl.training import resume, train
from tests.training.test_resume import StopAt, assert_same_end

OPTIONS = {"image": "flat_near", "image_size": 32, "families": "point,lift,push"}
CFG = PretrainCfg(updates=180, updates_per_iteration=60, batch=32, lr=2e-3, warmup=20, held_out=0.2)
TOKEN = TokenVlaCfg(
    horizon=2, vision_width=16, vision_depth=2, vision_heads=2, patch=8, width=32, heads=2, mlp=64, bins=32
)


@pytest.fixture(scope="module")
def demos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("demos") / "d"
    return collect_demos("mujoco/tabletop", path, episodes=24, num_envs=24, sim_options=OPTIONS).path


def sim() -> Any:
    return flows.tabletop(4)


def learner(demos: Path, cfg: PretrainCfg = CFG, policy: Any = None, policy_cfg: Any = TOKEN) -> PretrainLearner:
    return cfg.build(Setup(sim, policy_cfg, policy, demos, seed=0))


def test_the_eyes_learn_to_tell_and_nothing_else_changes(demos: Path) -> None:
    made = learner(demos)
    before = {name: x.detach().clone() for name, x in made.policy.named_parameters()}
    scalars = [made.iterate() for _ in range(made.iterations)]
    assert scalars[-1]["updates"] == 180 and scalars[-1]["loss"] < 0.8 * scalars[0]["loss"]
    changed = {name for name, x in made.policy.named_parameters() if not torch.equal(before[name], x)}
    assert changed and all(name.startswith(("net.vision_backbone.", "net.projector.")) for name in changed)
    assert any(name.startswith("net.vision_backbone.featurizer.blocks.0.") for name in changed)


def test_what_is_held_out_is_judged_and_never_learned_from(demos: Path) -> None:
    made = learner(demos)
    dataset = read_dataset(demos)
    begin = int(dataset.offsets[19])
    assert made._held_out_indices.tolist() == list(range(begin, dataset.num_frames))
    predictions = made._loss.predictions(
        {"image_flat_near": torch.from_numpy(dataset.frames("observation.image_flat_near"))[begin:]}
    )["privileged"][:, 0]
    things = torch.from_numpy(dataset.frames("observation.things")).float()
    wanted = (things - things.mean(0)) / things.std(0, correction=0).clamp(min=1e-4)
    assert made._judge()["privileged_loss"] == pytest.approx(
        float((predictions.detach() - wanted[begin:]).square().mean()), rel=1e-4
    )
    # frames that are not learned from may hold anything
    made._data["privileged/things"][begin:] = float("nan")
    made._data["obs/image_flat_near"][begin:] = 0
    assert made.iterate()["loss"] < 2


def test_no_more_frames_are_evaluated_than_is_quick(demos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pretrain, "MAX_HELD_OUT_FRAMES", 5)
    made = learner(demos)
    frames = read_dataset(demos)
    assert len(made._held_out_indices) == 5
    assert (made._held_out_indices[0], made._held_out_indices[-1]) == (int(frames.offsets[19]), frames.num_frames - 1)


def test_words_are_bound_to_what_eyes_see(demos: Path) -> None:
    """In a second run, from eyes that see: the language model learns, and what it tells depends on what it is told."""
    short = replace(CFG, updates_per_iteration=30)
    eyes = learner(demos, replace(short, updates=30))
    eyes.iterate()
    cfg = replace(short, updates=120, grounding_coef=1.0, symmetries=("mirror", "colours"))
    made = learner(demos, cfg, policy=eyes.policy)
    before = {name: x.detach().clone() for name, x in made.policy.named_parameters()}
    scalars = [made.iterate() for _ in range(3)]
    assert scalars[-1]["grounding_loss"] < 0.8 * scalars[0]["grounding_loss"]
    assert scalars[-1]["loss"] == pytest.approx(
        scalars[-1]["privileged_loss"] + scalars[-1]["grounding_loss"], rel=1e-4
    )
    assert {"held_out_privileged_loss", "held_out_grounding_loss"} <= scalars[-1].keys()
    changed = {name for name, x in made.policy.named_parameters() if not torch.equal(before[name], x)}
    assert any(name.startswith("net.language_model.model.layers.0.") for name in changed)
    rows = {key.removeprefix("obs/"): x[:32] for key, x in made._data.items() if key.startswith("obs/")}
    other = {**rows, "instruction": rows["instruction"].roll(16, 0)}
    with torch.no_grad():
        one, two = made._loss.predictions(rows), made._loss.predictions(other)
    assert torch.equal(one["privileged"], two["privileged"]) and not torch.allclose(one["grounding"], two["grounding"])
    again = learner(demos, cfg)
    again.load(kit.snapshot(made.state()))
    assert again.iterate() == made.iterate()


def test_half_of_a_batch_is_of_scenes_that_nobody_acted_in(demos: Path) -> None:
    made = learner(demos, replace(CFG, updates_per_iteration=6, grounding_coef=1.0, scenes=6, symmetries=("mirror",)))
    made.iterate()
    assert made._fresh is not None
    first = made._fresh.arrays
    # two batches of 4 envs, each at the start and after a motion
    assert {name: len(x) for name, x in first.items()} == dict.fromkeys(made._data, 16)
    now, later = first["grounding/meant"][:4], first["grounding/meant"][4:8]
    assert torch.allclose(now, later, atol=5e-3) and not torch.equal(first["obs/state"][:4], first["obs/state"][4:8])
    ones = {name: torch.full_like(x, 1) for name, x in first.items()}
    made._fresh = made._fresh._replace(arrays=ones, symmetric=None)
    made._demonstrated = made._demonstrated._replace(symmetric=None)
    rows = made._draw(3)
    fresh = (rows["obs/image_flat_near"] == 1).flatten(1).all(1)
    assert fresh.reshape(3, CFG.batch)[:, 16:].all() and not fresh.reshape(3, CFG.batch)[:, :16].any()
    made.iterate()
    assert not torch.equal(made._fresh.arrays["privileged/things"], first["privileged/things"])
    made.close()


def test_scenes_are_the_same_after_a_resume(demos: Path) -> None:
    cfg = replace(CFG, updates=20, updates_per_iteration=5, grounding_coef=1.0, scenes=4)
    made, again = learner(demos, cfg), learner(demos, cfg)
    made.iterate()
    again.load(kit.snapshot(made.state()))
    assert again.iterate() == made.iterate()
    assert made._fresh is not None and again._fresh is not None
    assert all(torch.equal(x, again._fresh.arrays[name]) for name, x in made._fresh.arrays.items())


def test_words_mean_nothing_where_the_sim_does_not_say(demos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("robotrl.sims.mujoco.tabletop.sim.TabletopFacts.grounding_keys")
    with pytest.raises(CapabilityError, match=r"lacks HasGroundingTargets: algo\.grounding_coef is 1\.0"):
        learner(demos, replace(CFG, grounding_coef=1.0))


@pytest.mark.parametrize("network", ["smolvla", "pi0"])
def test_flow_policies_have_eyes_too(network: str, demos: Path) -> None:
    policy = flows.policy_on(network, patch=16 if network == "pi0" else 8)
    assert isinstance(policy, HasImageFeatures)
    seen = policy.image_features(flows.observed())
    assert seen.shape == (flows.SEEN, policy.image_features_width)
    made = learner(demos, policy=policy)
    losses = [made.iterate()["loss"] for _ in range(3)]
    assert losses[-1] < losses[0]


def test_cloning_goes_on_from_eyes_that_see(demos: Path) -> None:
    made = learner(demos, replace(CFG, updates=60))
    made.iterate()
    eyes = {n: x.clone() for n, x in made.policy.state_dict().items() if "vision" in n}
    clone = BcCfg(updates=2, updates_per_iteration=2, batch=8, image_shift=0, lr=1e-6).build(
        Setup(sim, None, made.policy, demos, seed=0)
    )
    clone.iterate()
    assert all(torch.allclose(clone.model.state_dict()[n], x, atol=1e-4) for n, x in eyes.items())


def stopped_run_ends_the_same(algo: Any, demos: Path, path: Path) -> None:
    cfg: TrainCfg[Any, Any] = TrainCfg(
        SimCfg("mujoco/tabletop", 4, tuple(f"{key}={value}" for key, value in OPTIONS.items())),
        algo,
        TOKEN,
        dataset=str(demos),
        evaluation=EvalCfg(every=0, episodes=1, num_envs=1, animation=0),
        checkpoint_every=1,
    )
    train(cfg, path / "whole")
    train(cfg, path / "cut", [StopAt(2)])
    resume(path / "cut")
    assert_same_end(path / "whole", path / "cut")


def test_a_stopped_run_ends_the_same(demos: Path, tmp_path: Path) -> None:
    algo = replace(CFG, updates=40, updates_per_iteration=10, symmetries=("mirror",))
    stopped_run_ends_the_same(algo, demos, tmp_path)


def test_nothing_is_held_out_where_none_is_wanted(demos: Path) -> None:
    assert "held_out_privileged_loss" not in learner(demos, replace(CFG, held_out=0.0, updates=10)).iterate()


def test_what_cannot_be_looked_at_is_refused(demos: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="dataset is not given: learning to look"):
        CFG.build(Setup(sim, TOKEN, None, None, seed=0))
    for changes, message in (
        ({"updates": 0}, r"algo\.updates is 0"),
        ({"lr": 0.0}, r"algo\.lr is 0\.0"),
        ({"warmup": -1}, r"algo\.warmup is -1"),
        ({"held_out": 1.0}, r"algo\.held_out is 1\.0"),
        ({"grounding_coef": -1.0}, r"algo\.grounding_coef is -1\.0"),
        ({"muon": -1.0}, r"algo\.muon is -1\.0"),
        ({"scenes": -1}, r"algo\.scenes is -1"),
        ({"symmetries": ("mirrors",)}, r"algo\.symmetries 'mirrors' is unknown: did you mean 'mirror'"),
    ):
        with pytest.raises(ConfigError, match=message):
            learner(demos, replace(CFG, **changes))
    walks = kit.write_walks(tmp_path / "walks")
    with pytest.raises(CapabilityError, match="policy FlowPolicy lacks HasImageFeatures"):
        CFG.build(kit.setup(kit.flow(), dataset=walks))
    assert grpo.policy_on(grpo.tabletop(1)).image_features_width == 4 * 32
