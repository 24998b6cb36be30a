"""What frozen parts make of observations, kept: the same learning, fewer looks, refused where it learns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import robotrl
import tests.algos.test_grpo as grpo
import tests.algos.test_vla_rl as vla_rl
import tests.kits.learner_kit as kit
import tests.policies.vla.test_flow as flows
from robotrl.algos.bc import BcCfg
from robotrl.algos.flow_grpo import FlowGrpoCfg
from robotrl.algos.flow_sde import FlowSdeCfg
from robotrl.algos.opd import OpdCfg
from robotrl.algos.reinflow import ReinFlowCfg
from robotrl.config import LoraCfg
from robotrl.errors import CapabilityError, ConfigError
from robotrl.learners.feature_cache import FeatureCache
from robotrl.learners.learner import Setup
from robotrl.memory_estimate.estimate import Load, described, estimate_memory, on_meta_device
from robotrl.peft.lora import adapt
from robotrl.rollout.demos import collect_demos
from robotrl.run.policy_checkpoint import probe
from robotrl.spec import Cache
from robotrl.training import train

WHAT = "image-features"
ELSEWHERE = LoraCfg(rank=4, targets=("language_model",))
"""Adapters that leave the eyes as they are."""
CHAIN: dict[str, Any] = {
    "env_steps": 64, "num_steps": 8, "epochs": 2, "minibatch": 4, "critic_warmup_env_steps": 0, "engine": "eager"
}  # fmt: skip


def token(decoding: str = "parallel") -> Any:
    policy = grpo.policy_on(grpo.tabletop(1), decoding=decoding)
    adapt(policy, ELSEWHERE, partial(probe, policy))
    return policy


MAKE: dict[str, Callable[[], Any]] = {
    "parallel": token,
    "autoregressive": lambda: token("autoregressive"),
    "smolvla": lambda: flows.policy_on("smolvla", trained="expert"),
    "pi0": lambda: flows.policy_on("pi0", patch=16, trained="expert"),
}


def shown(policy: Any) -> dict[str, torch.Tensor]:
    """Six observations, and an array that the policy does not know."""
    size = next(spec.shape[0] for spec in policy.observation_spec.values() if len(spec.shape) == 3)
    camera = "flat_near" if "image_flat_near" in policy.observation_spec else "flat_top"
    sim = robotrl.make_sim(
        "mujoco/tabletop", num_envs=6, seed=0, image=camera, image_size=size, families="point,lift,push"
    )
    return {key: x.clone() for key, x in sim.reset(2).items()}


def context(policy: Any, obs: dict[str, torch.Tensor]) -> torch.Tensor:
    ctx = policy.encode(obs)
    return ctx if isinstance(ctx, torch.Tensor) else ctx.embeddings


@pytest.mark.parametrize(("name", "what"), [*((name, "image-features") for name in MAKE), ("pi0", "context")])
def test_what_is_kept_stands_for_what_was_seen(name: str, what: Cache) -> None:
    policy = MAKE[name]()
    obs = shown(policy)
    kept = FeatureCache(policy, what, rows=6, bf16=False)(obs)
    pictures = {key for key in obs if key.startswith("image_")}
    gone = pictures if what == "image-features" else set(policy.observation_spec)
    added = {f"{key}.features" for key in pictures} if what == "image-features" else {"context"}
    assert set(kept) == (set(obs) - gone) | added and torch.equal(kept["things"], obs["things"])
    with torch.no_grad():
        assert torch.equal(context(policy, kept), context(policy, obs))
    # some rows at a time
    parts = FeatureCache(policy, what, rows=4, bf16=False)(obs)
    assert all(torch.allclose(parts[key], x, atol=1e-5) for key, x in kept.items())
    # one of several processes may have nothing, under the same keys
    nothing = FeatureCache(policy, what, rows=4, bf16=False)({key: x[:0] for key, x in obs.items()})
    assert {key: x.shape for key, x in nothing.items()} == {key: (0, *x.shape[1:]) for key, x in kept.items()}
    none = FeatureCache(policy, "none", rows=4, bf16=False)(obs)
    assert all(none[key] is x for key, x in obs.items())


@pytest.mark.parametrize(
    ("make", "what", "error", "message"),
    [
        (
            lambda: grpo.policy_on(grpo.tabletop(1)),
            "image-features",
            ConfigError,
            "cache is 'image-features', and .* learns: expected none",
        ),
        (
            lambda: flows.policy_on("pi0", patch=16),
            "context",
            ConfigError,
            "cache is 'context', .* none or image-features",
        ),
        # its projection of the state learns with the expert
        (MAKE["smolvla"], "context", ConfigError, "cache is 'context', and what would be kept learns"),
        (
            token,
            "context",
            CapabilityError,
            "TokenVlaPolicy has no separate context: cache can be none or image-features",
        ),
        (kit.flow, "image-features", CapabilityError, "lacks HasCache: cache is 'image-features', expected none"),
    ],
)
def test_what_learns_is_not_kept(make: Callable[[], Any], what: Cache, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        FeatureCache(make(), what, rows=4, bf16=False)


# learners


def demonstrations(path: Path) -> Path:
    options = {"image": "flat_near", "image_size": 32, "families": "point,lift,push"}
    return collect_demos("mujoco/tabletop", path, episodes=4, num_envs=4, sim_options=options).path


def learner(name: str, what: Cache, path: Path) -> Any:
    if name in ("grpo", "vla-rl"):
        wide = replace(grpo.CFG, keep_low=0.0, keep_high=1.0, epochs=2, lr=1e-3)
        cfg: Any = wide if name == "grpo" else replace(vla_rl.CFG, critic_warmup_env_steps=0, epochs=2)
        return cfg.build(Setup(grpo.tabletop, None, token(), None, seed=0, cache=what))
    policy = MAKE["pi0" if name == "flow-sde" else "smolvla"]()
    if name == "flow-grpo":
        cfg = FlowGrpoCfg(iterations=2, group_size=4, groups=2, tries=2, minibatch=16, epochs=2)
        return cfg.build(Setup(grpo.tabletop, None, policy, None, seed=0, cache=what))
    if name == "cloning":
        cfg = BcCfg(updates=6, updates_per_iteration=3, batch=8, image_shift=0)
        return cfg.build(Setup(lambda: flows.tabletop(4), None, policy, path, seed=0, cache=what))
    cfg = (FlowSdeCfg if name == "flow-sde" else ReinFlowCfg)(**CHAIN)
    return cfg.build(Setup(lambda: flows.tabletop(4), None, policy, None, seed=0, cache=what))


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("grpo", "image-features"),
        ("vla-rl", "image-features"),
        ("reinflow", "image-features"),
        ("flow-sde", "image-features"),
        ("flow-sde", "context"),
        ("flow-grpo", "image-features"),
        ("cloning", "image-features"),
    ],
)
def test_a_learner_learns_the_same_and_looks_less(
    name: str, what: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = demonstrations(tmp_path / "demos") if name == "cloning" else tmp_path
    looked, ends = dict[str, int](), dict[str, Any]()
    for kept in ("none", what):
        made = learner(name, kept, path)
        policy = getattr(made, "model", made.policy)
        if name in ("grpo", "flow-grpo"):
            grpo.rigged(monkeypatch, made, [True, False, False, False, False, False, True, True])
        rows: list[int] = []
        encode_images = policy.net.encode_images
        monkeypatch.setattr(
            policy.net,
            "encode_images",
            lambda x, rows=rows, encode_images=encode_images: (rows.append(len(x)), encode_images(x))[1],
        )
        scalars = [made.iterate() for _ in range(2)]
        looked[kept] = sum(rows)
        ends[kept] = (scalars, {n: x.detach().clone() for n, x in policy.named_parameters() if x.requires_grad})
    (plain, weights), (same, others) = ends["none"], ends[what]
    for before, after in zip(plain, same, strict=True):
        assert before.keys() == after.keys()
        assert all(after[key] == pytest.approx(value, rel=1e-3, abs=1e-4) for key, value in before.items())
    assert all(torch.allclose(others[n], x, atol=1e-4) for n, x in weights.items())
    assert looked[what] < 0.7 * looked["none"]


# runs


def test_a_run_keeps_what_its_config_says(tmp_path: Path) -> None:
    clone = grpo.saved(tmp_path / "clone")
    base = grpo.run_cfg(clone)
    run = train(replace(base, lora=ELSEWHERE, cache="image-features"), tmp_path / "run")
    assert '"cache": "image-features"' in (run / "config.json").read_text()
    for changes, error, message in (
        ({"cache": "eyes"}, ConfigError, "cache is 'eyes': expected .*'image-features'"),
        (
            {"cache": "image-features", "init_from": None},
            ConfigError,
            "cache is 'image-features' and init_from is not given",
        ),
        ({"cache": "image-features"}, ConfigError, "cache is 'image-features', and what would be kept learns"),
        (
            {
                "cache": "image-features",
                "lora": ELSEWHERE,
                "algo": OpdCfg(teacher=str(clone), iterations=1, minibatch=8),
            },
            CapabilityError,
            "OpdLearner keeps nothing of observations: expected cache none",
        ),
    ):
        with pytest.raises(error, match=message):
            train(replace(base, **changes), tmp_path / "refused")
        assert not (tmp_path / "refused").exists()


def test_a_picture_that_is_kept_cannot_be_shifted(tmp_path: Path) -> None:
    for changes, said in (
        ({"image_shift": 4}, r"algo\.image_shift is 4: expected 0"),
        ({"symmetries": ("mirror",)}, "symmetries"),
    ):
        cfg = BcCfg(**{"image_shift": 0, **changes})
        with pytest.raises(ConfigError, match=rf"cache is 'image-features' and .*{said}"):
            cfg.build(
                Setup(lambda: flows.tabletop(4), None, MAKE["smolvla"](), tmp_path, seed=0, cache="image-features")
            )


def test_what_is_kept_is_part_of_what_a_run_needs() -> None:
    policy = MAKE["smolvla"]()
    described_as = policy.to_json()
    with on_meta_device(described_as["kind"]):
        made = described(described_as)
        plain, kept = (
            estimate_memory(made, Load(4, stored=100, cache=what), made.observation_spec) for what in ("none", WHAT)
        )
    tokens = policy.net.encode_images(torch.zeros(1, 32, 32, 3, dtype=torch.uint8))
    assert kept.stored - plain.stored == 100 * (tokens.numel() * 4 - 32 * 32 * 3)
