"""Adapters: the base at the start, merged the same, learned by every learner as it is, stored small and strictly."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import tests.algos.test_grpo as grpo
import tests.algos.test_opd as opd
import tests.algos.test_vla_rl as vla_rl
import tests.kits.learner_kit as kit
import tests.policies.vla.test_flow as flows
from robotrl import config as configs
from robotrl.algos.bc import BcCfg
from robotrl.algos.dppo import DppoCfg
from robotrl.algos.flow_grpo import FlowGrpoCfg
from robotrl.algos.flow_sde import FlowSdeCfg
from robotrl.algos.opd import OpdCfg
from robotrl.algos.reinflow import ReinFlowCfg
from robotrl.config import ActorCfg, EvalCfg, LoraCfg, TrainCfg
from robotrl.deploy.export import export
from robotrl.errors import CapabilityError, ConfigError, DataError
from robotrl.learners.learner import Setup
from robotrl.peft.frozen import Frozen, freeze, thaw
from robotrl.peft.lora import adapt, adaptation_of, called_layers, merged
from robotrl.policies.flow import FlowCfg
from robotrl.run.directory import Run
from robotrl.run.policy_checkpoint import BASE, load_policy, policy_from_tree, policy_tree, probe
from robotrl.training import resume, train
from tests.training.test_resume import StopAt, assert_same_end, make_clone, peg

LORA = LoraCfg(rank=4, alpha=8.0)
MAKE: dict[str, Callable[[], Any]] = {
    "parallel": lambda: grpo.policy_on(grpo.tabletop(1)),
    "autoregressive": lambda: grpo.policy_on(grpo.tabletop(1), decoding="autoregressive"),
    "smolvla": lambda: flows.policy_on("smolvla"),
    "pi0": lambda: flows.policy_on("pi0", patch=16),
}


def adapted(name: str, cfg: LoraCfg = LORA) -> Any:
    policy = MAKE[name]()
    adapt(policy, cfg, partial(probe, policy))
    return policy


def learning(module: nn.Module) -> dict[str, Tensor]:
    return {name: x.detach().clone() for name, x in module.named_parameters() if x.requires_grad}


def disturb(policy: nn.Module, scale: float = 0.3) -> None:
    """Let each adapter do something."""
    torch.manual_seed(1)
    with torch.no_grad():
        for name, weight in policy.named_parameters():
            if ".lora_B." in name:
                weight.normal_(0, scale)


# weights that stay


class Pair(nn.Module):
    """Two layers that share a weight, and one of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.own = nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 3)
        self.two.weight = self.one.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.own(self.two(self.one(x)))


def test_copies_share_what_is_frozen_and_states_leave_it_out() -> None:
    pair = Pair()
    whole = {name: value.clone() for name, value in pair.state_dict().items()}
    freeze(pair, {"own.bias"})
    other = copy.deepcopy(pair)
    assert list(pair.state_dict()) == ["own.bias"] and pair.one.weight is pair.two.weight
    assert other.one.weight is pair.one.weight and other.own.bias is not pair.own.bias
    # inside another module, too
    around = nn.ModuleDict({"a": pair})
    around.load_state_dict({"a.own.bias": torch.ones(3)})
    assert around.state_dict()["a.own.bias"].tolist() == [1.0, 1.0, 1.0] and not torch.equal(
        other.own.bias, pair.own.bias
    )
    with pytest.raises(RuntimeError, match=r"Missing key.*own\.bias"):
        pair.load_state_dict({})
    thaw(other)
    assert {name: x.shape for name, x in other.state_dict().items()} == {k: x.shape for k, x in whole.items()}
    assert other.one.weight is other.two.weight and other.one.weight.requires_grad
    with torch.no_grad():
        other.one.weight.zero_()
    assert torch.equal(pair.one.weight, whole["one.weight"])


# adapting


@pytest.mark.parametrize("name", MAKE)
def test_an_adapted_policy_begins_as_its_base(name: str) -> None:
    policy = MAKE[name]()
    names, before = set(policy.state_dict()), probe(policy)
    adapt(policy, LORA, partial(probe, policy))
    after = probe(policy)
    # what is added is zero; behind it, transformers' pi0 sums in another order
    assert torch.equal(before, after) or (name == "pi0" and torch.allclose(before, after, atol=1e-6))
    assert type(policy) is type(MAKE[name]()) and type(merged(policy)) is type(policy)
    layers = adaptation_of(policy).layers  # pyright: ignore[reportOptionalMemberAccess]
    wide = [policy.get_submodule(layer) for layer in layers]
    assert sum(x.numel() for x in learning(policy).values()) == sum(4 * (x.in_features + x.out_features) for x in wide)
    assert all(".lora_" in key for key in learning(policy)) and len(layers) > 20
    # no adapter of a layer whose weight is read past it, or that nothing is computed with
    assert not any("lm_head" in layer or ".attn_pool" in layer for layer in layers)
    assert set(merged(policy).state_dict()) == names


@pytest.mark.parametrize("name", MAKE)
def test_every_adapter_counts_and_merged_it_computes_the_same(name: str) -> None:
    policy = adapted(name)
    base = probe(policy)
    disturb(policy)
    one = merged(policy)
    assert adaptation_of(one) is None and not any(isinstance(x, Frozen) for x in one.parameters())
    acted = probe(policy)
    assert (acted - base).abs().max() > 0.1
    assert torch.allclose(probe(one), acted, atol=1e-4)
    fresh = MAKE[name]()
    assert {n: x.requires_grad for n, x in fresh.named_parameters()} == {
        n: x.requires_grad for n, x in one.named_parameters()
    }
    with torch.no_grad():
        for weight in one.parameters():
            weight.zero_()
    assert torch.equal(probe(policy), acted)


# a base in 16 bits


@pytest.mark.parametrize("name", MAKE)
def test_a_base_in_16_bits_is_half_as_large_and_says_nearly_the_same(name: str) -> None:
    base = probe(MAKE[name]())
    full, half = adapted(name), adapted(name, replace(LORA, bf16_base=True))
    halved = adaptation_of(half).halved  # pyright: ignore[reportOptionalMemberAccess]
    assert set(adaptation_of(full).layers) <= set(halved)  # pyright: ignore[reportOptionalMemberAccess]

    def size(policy: Any, layer: str) -> int:
        part = policy.get_submodule(layer)
        weight = getattr(part, "base_layer", part).weight
        return weight.numel() * weight.element_size()

    assert {size(half, layer) / size(full, layer) for layer in halved} == {0.5}
    assert {x.dtype for x in learning(half).values()} == {torch.float32}
    assert learning(half).keys() == learning(full).keys() and half.state_dict().keys() == full.state_dict().keys()
    # tokens are the likeliest ones, which rounding hardly ever changes
    moved = (probe(half) - base).abs().mean()
    assert moved < 0.05 and (moved > 0 or name in ("parallel", "autoregressive"))
    # neither a copy nor a cast of the whole network makes it large again, and copies share it
    other = copy.deepcopy(half).to(torch.float32)
    layer = halved[0]
    assert other.get_submodule(layer).base_layer.weight is half.get_submodule(layer).base_layer.weight
    assert size(other, layer) == size(half, layer) and torch.equal(probe(other), probe(half))


@pytest.mark.parametrize("name", MAKE)
def test_merged_a_base_in_16_bits_is_an_ordinary_policy(name: str) -> None:
    policy = adapted(name, replace(LORA, bf16_base=True))
    disturb(policy)
    one = merged(policy)
    assert not any(isinstance(x, Frozen) or x.dtype != torch.float32 for x in one.parameters())
    assert {type(x) for x in one.modules()} == {type(x) for x in MAKE[name]().modules()}
    acted, base = probe(policy), probe(adapted(name))
    assert (probe(one) - acted).abs().mean() < 0.1 * (acted - base).abs().mean()


def test_a_run_with_a_base_in_16_bits_ends_the_same_when_stopped_and_is_loaded(tmp_path: Path) -> None:
    cfg = replace(run_cfg(grpo.saved(tmp_path / "clone")), lora=replace(LORA, bf16_base=True))
    train(cfg, tmp_path / "whole")
    train(cfg, tmp_path / "cut", [StopAt(2)])
    resume(tmp_path / "cut")
    assert_same_end(tmp_path / "whole", tmp_path / "cut")
    policy = load_policy(tmp_path / "whole", "latest")
    assert adaptation_of(policy).halved  # pyright: ignore[reportOptionalMemberAccess]


@given(st.integers(1, 5), st.integers(1, 6), st.integers(1, 6), st.floats(0.5, 64), st.integers(0, 10**6))
@settings(max_examples=25, deadline=None)
def test_what_is_merged_is_the_product(rank: int, wide: int, high: int, alpha: float, seed: int) -> None:
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(wide, high)).double()
    x, weight = torch.randn(7, wide).double(), net[0].weight.detach().clone()
    adapt(net, LoraCfg(rank=rank, alpha=alpha), lambda: net(x))
    down, up = (net.get_parameter(f"0.lora_{part}.default.weight") for part in "AB")
    with torch.no_grad():
        up.normal_()
    expected = x @ (weight + alpha / rank * up @ down).T + net[0].base_layer.bias
    # peft keeps adapters in single precision at least
    assert torch.allclose(net(x).double(), expected, rtol=1e-4, atol=1e-4)
    assert torch.allclose(merged(net)(x).double(), expected, rtol=1e-4, atol=1e-4)


def test_only_layers_that_are_called_and_may_learn_are_adapted() -> None:
    pair = Pair()
    assert called_layers(pair, lambda: pair.two(pair.one(torch.ones(1, 2)))) == ["one", "two"]
    expert = flows.policy_on("smolvla", trained="expert")
    adapt(expert, LORA, partial(probe, expert))
    assert not any(".vlm." in layer for layer in expert.adaptation.layers)
    narrow = adapted("parallel", replace(LORA, targets=("q_proj", "projector"), heads=("proprio_projector", "lm_head")))
    ends = {layer.rpartition(".")[2] for layer in narrow.adaptation.layers}
    assert ends == {"q_proj", "fc1", "fc2", "fc3"} and len(narrow.adaptation.layers) == 3 + narrow.cfg.depth
    whole = {name for name in learning(narrow) if ".lora_" not in name}
    assert whole == {
        "net.language_model.lm_head.weight",
        *(f"net.proprio_projector.fc{i}.{part}" for i in (1, 2) for part in ("weight", "bias")),
    }


@pytest.mark.parametrize(
    ("cfg", "message"),
    [
        (replace(LORA, targets=("q_prj",)), "lora.targets 'q_prj' is unknown: did you mean 'q_proj'"),
        (replace(LORA, targets=("lm_head",)), "lora.targets 'lm_head' is unknown"),
        (replace(LORA, heads=("state_projector",)), "lora.heads 'state_projector' is unknown: did you mean"),
    ],
)
def test_targets_that_are_not_there_are_refused(cfg: LoraCfg, message: str) -> None:
    policy = MAKE["parallel"]()
    before = policy.state_dict().keys()
    with pytest.raises(ConfigError, match=message):
        adapt(policy, cfg, partial(probe, policy))
    assert policy.state_dict().keys() == before


# learners


def learners(tmp_path: Path) -> dict[str, Callable[[], Any]]:
    """Learners of all families, adapted policies in them."""

    def tabletop(cfg: Any, name: str) -> Any:
        make = grpo.tabletop if name == "parallel" else lambda: flows.tabletop(4)
        return cfg.build(Setup(make, None, adapted(name), None, seed=0))

    def walk() -> Any:
        policy = kit.flow()
        adapt(policy, LORA, partial(probe, policy))
        cfg = BcCfg(updates=20, updates_per_iteration=10, batch=16)
        return cfg.build(kit.setup(policy, dataset=kit.write_walks(tmp_path / "walks")))

    chain: dict[str, Any] = {
        "env_steps": 64, "num_steps": 8, "epochs": 1, "minibatch": 4, "critic_warmup_env_steps": 0, "engine": "eager"
    }  # fmt: skip
    better = adapted("parallel")
    disturb(better)
    teacher = opd.saved(tmp_path / "teacher", merged(better))
    return {
        "cloning": walk,
        "grpo": lambda: tabletop(replace(grpo.CFG, keep_low=0.0, keep_high=1.0, lr=1e-3), "parallel"),
        "srpo": lambda: tabletop(replace(grpo.CFG, progress="embedding", keep_low=0.0, keep_high=1.0), "parallel"),
        "vla-rl": lambda: tabletop(replace(vla_rl.CFG, critic_warmup_env_steps=0), "parallel"),
        "opd": lambda: tabletop(OpdCfg(teacher=str(teacher), iterations=1, minibatch=16), "parallel"),
        "reinflow": lambda: tabletop(ReinFlowCfg(**chain, ema=0.9), "smolvla"),
        "flow-sde": lambda: tabletop(FlowSdeCfg(**chain), "pi0"),
        "flow-grpo": lambda: FlowGrpoCfg(group_size=4, groups=2, tries=1, minibatch=16, lr=1e-3).build(
            Setup(grpo.tabletop, None, adapted("smolvla"), None, seed=0)
        ),
    }


@pytest.mark.parametrize("name", ["cloning", "grpo", "srpo", "vla-rl", "opd", "reinflow", "flow-sde", "flow-grpo"])
def test_every_learner_learns_adapters_as_it_is(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = learners(tmp_path)[name]()
    if name in ("grpo", "srpo", "flow-grpo"):
        grpo.rigged(monkeypatch, made, [True, False, False, False, False, False, True, True])
    policy = getattr(made, "model", made.policy)
    frozen = {n: (x, x.detach().clone()) for n, x in policy.named_parameters() if isinstance(x, Frozen)}
    before = learning(policy)
    scalars = made.iterate()
    if name not in ("cloning", "opd"):
        assert scalars["ratio_error"] <= 1e-5
    assert frozen and all(torch.equal(now, then) for now, then in frozen.values())
    assert any(not torch.equal(before[n], x) for n, x in learning(policy).items())

    def bases(tree: Any, path: str = "") -> list[str]:
        """Where a state holds a tensor of a base's layer."""
        if isinstance(tree, Tensor):
            return [path] if "base_layer" in path else []
        return [found for k, x in tree.items() for found in bases(x, f"{path}/{k}")] if isinstance(tree, dict) else []

    state = made.state()
    assert bases(state) == []
    again = learners(tmp_path / "again")[name]()
    again.load(kit.snapshot(state))
    assert kit.same(again.state(), state)


def test_what_is_averaged_read_or_watched_shares_the_base(tmp_path: Path) -> None:
    made = learners(tmp_path)["vla-rl"]()
    reader, own = made._reader.policy, dict(made.policy.named_parameters())
    shared = {n: x is own[n] for n, x in reader.named_parameters()}
    assert all(same == isinstance(own[n], Frozen) for n, same in shared.items()) and any(shared.values())
    clone = learners(tmp_path / "b")["cloning"]()
    own = dict(clone.model.named_parameters())
    assert all((x is own[n]) == isinstance(x, Frozen) for n, x in clone.policy.named_parameters())
    assert clone.policy is not clone.model


def run_cfg(clone: Path, **changes: Any) -> TrainCfg[Any, Any]:
    return replace(grpo.run_cfg(clone), lora=replace(LORA, heads=("proprio_projector",)), **changes)


def test_a_stopped_run_ends_the_same_and_is_loaded(tmp_path: Path) -> None:
    clone = grpo.saved(tmp_path / "clone")
    train(run_cfg(clone), tmp_path / "whole")
    train(run_cfg(clone), tmp_path / "cut", [StopAt(2)])
    # what it started from may be gone
    shutil.move(clone, tmp_path / "elsewhere")
    resume(tmp_path / "cut")
    assert_same_end(tmp_path / "whole", tmp_path / "cut")
    moved = shutil.move(tmp_path / "whole", tmp_path / "moved")
    policy = load_policy(moved, "latest")
    latest = Run.open(moved).latest()
    assert latest is not None and policy.adaptation.rank == 4
    stored = latest.tree["policy"]["weights"]
    assert all(torch.equal(stored[n], x) for n, x in learning(policy).items())
    assert sum(x.numel() for x in stored.values()) < 0.2 * sum(x.numel() for x in policy.parameters())
    # a later run begins with all that was learned, as one network, or with adapters on that
    train(replace(run_cfg(Path(moved)), algo=replace(grpo.CFG, iterations=1, tries=1)), tmp_path / "next")
    base = load_policy(tmp_path / "next" / BASE)
    best = merged(load_policy(moved))
    assert all(torch.equal(x, y) for x, y in zip(base.parameters(), best.parameters(), strict=True))


def test_an_adapter_without_its_base_or_with_another_is_refused(tmp_path: Path) -> None:
    clone = grpo.saved(tmp_path / "clone")
    short = replace(grpo.CFG, iterations=1, tries=1)
    for name in ("a", "b"):
        train(run_cfg(clone, algo=short), tmp_path / name)
        torch.manual_seed(7)
        # the second one starts from other weights
        other = grpo.policy_on(grpo.tabletop(1))
        with torch.no_grad():
            other.net.projector.fc1.weight[0, 0] += 1e-3
        shutil.rmtree(clone)
        run = Run.create(clone, {}, seed=0, command=[])
        run.save({"policy": policy_tree(other)}, step=0)
        run.close()
    shutil.rmtree(tmp_path / "a" / BASE)
    with pytest.raises(DataError, match=r"adaptation of the weights with SHA-256 \w{12}: expected .*a/base"):
        load_policy(tmp_path / "a", "latest")
    shutil.copytree(tmp_path / "b" / BASE, tmp_path / "a" / BASE)
    with pytest.raises(DataError, match=r"a/base: the base policy's weights have SHA-256 \w{12}: expected \w{12}"):
        load_policy(tmp_path / "a", "latest")
    tree = policy_tree(adapted("parallel"))
    with pytest.raises(DataError, match="here: the policy is an adaptation"):
        policy_from_tree(tree, "here")


@pytest.mark.parametrize("name", ["parallel", "smolvla"])
def test_it_leaves_as_a_bundle_without_adapters(name: str, tmp_path: Path) -> None:
    # as few steps, and weights as near to a network's own, as let rounding not be all that is compared
    policy = MAKE[name]() if name == "parallel" else flows.policy_on(name, denoising_steps=2)
    adapt(policy, LORA, partial(probe, policy))
    disturb(policy, 0.02)
    sim = grpo.tabletop(8) if name == "parallel" else flows.tabletop()
    policy.control_dt_s = sim.control_dt_s
    obs = {key: value.clone() for key, value in sim.reset(0).items()}
    recorded = {key: obs[key].repeat(171, *[1] * (obs[key].ndim - 1)).numpy() for key in policy.observation_spec}
    report = export(policy, tmp_path / "bundle", observations=recorded)
    assert report.parity_max_rel <= 1e-5 and adaptation_of(policy) is not None


# configs


def test_a_config_without_adapters_is_as_before_and_old_ones_are_read() -> None:
    cfg = grpo.run_cfg(Path("clone"))
    data = configs.to_json(cfg)
    types = {"algo": type(cfg.algo), "policy": type(cfg.policy)}
    assert configs.from_json({k: v for k, v in data.items() if k != "lora"}, types) == configs.resolved(cfg)
    assert configs.from_json(configs.to_json(run_cfg(Path("clone"))), types) == configs.resolved(run_cfg(Path("clone")))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lora": LoraCfg(rank=-1)}, "lora.rank is -1"),
        ({"lora": LoraCfg(rank=4, alpha=0.0)}, "lora.alpha is 0.0: expected above 0"),
        ({"lora": LoraCfg(targets=("q_proj",))}, "lora.rank is 0 beside lora.targets, lora.heads or lora.bf16_base"),
        ({"lora": LoraCfg(rank=4, targets=())}, "lora.targets is empty"),
        ({"lora": LORA, "init_from": None}, "lora.rank is 4 and init_from is not given"),
        ({"lora": LORA, "actor": ActorCfg(process=True)}, "actor.process is True"),
    ],
)
def test_settings_that_mean_nothing_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        configs.check(replace(grpo.run_cfg(Path("clone")), **changes))


def test_a_learner_that_makes_another_policy_is_refused(tmp_path: Path) -> None:
    clone = make_clone(tmp_path / "clone")
    algo = DppoCfg(env_steps=80, num_steps=10, minibatch=6, tuned_steps=1, engine="eager")
    cfg = TrainCfg(peg(4), algo, FlowCfg(), init_from=str(clone), evaluation=EvalCfg(0, 4, 4, 0), lora=LORA)
    with pytest.raises(CapabilityError, match=r"makes another policy \(StagedPolicy\).* lora.rank is 4: expected 0"):
        train(cfg, tmp_path / "run")
    assert not (tmp_path / "run").exists()
