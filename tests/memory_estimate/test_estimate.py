"""The estimate of memory: tensors without memory need what real ones do, and what a process is seen to need."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import tests.algos.test_grpo as grpo
import tests.kits.learner_kit as walks
import tests.peft.test_lora as kit
from robotrl.algos.bc import BcCfg
from robotrl.algos.opd import OpdCfg
from robotrl.algos.vla_rl import VlaRlCfg
from robotrl.config import LoraCfg, SimCfg, TrainCfg
from robotrl.errors import ConfigError, DataError
from robotrl.memory_estimate.check import advice, announce, beside, gradient_rows, load_of, processes
from robotrl.memory_estimate.estimate import (
    GIB,
    Live,
    Load,
    MemoryEstimate,
    check_memory_fits,
    described,
    estimate_memory,
    on_meta_device,
    stand_in_adapters,
    update_peak,
)
from robotrl.peft.lora import adapt
from robotrl.run.policy_checkpoint import describe, probe
from robotrl.spec import MemoryNeeds
from robotrl.training import train
from tests.kits.paths_kit import ROOT

FACTOR = 2.0
"""Within which the estimate is of what a process is seen to need, either way: an allocator keeps what was freed."""


def test_live_bytes_by_hand() -> None:
    with Live() as live:
        a = torch.zeros(1000, dtype=torch.float32)
        b = a[:10].view(2, 5)
        assert (live.now, live.peak) == (4000, 4000) and b.shape == (2, 5)
        c = a + 1
        assert live.now == 8000
        del c
        assert (live.now, live.peak) == (4000, 8000)
        del a
        assert live.now == 4000, "a view keeps it"
        del b
        assert live.now == 0
    assert live.peak == 8000


@pytest.mark.parametrize("name", ["autoregressive", "smolvla", "pi0"])
def test_without_memory_the_same_is_found(name: str) -> None:
    policy = kit.MAKE[name]()
    load = Load(rows=5, evaluations=1 if name == "autoregressive" else 3, average=True, parts=True)
    with on_meta_device(policy.kind):
        alike = described(policy.to_json())
        found = estimate_memory(alike, load, alike.observation_spec)
    real = estimate_memory(policy, load, policy.observation_spec)
    # kernels may want a few numbers of their own
    assert found._replace(update=0) == real._replace(update=0)
    assert found.update == pytest.approx(real.update, rel=0.05)
    size = sum(x.numel() for x in policy.parameters())
    assert found.parameters == found.learning == size and found.optimizer == 3 * 4 * size
    assert found.total == found.weights + found.optimizer + found.update + found.stored
    halved = update_peak(policy, load._replace(rows=64, bf16=True), policy.observation_spec)
    assert 0.3 < halved / update_peak(policy, load._replace(rows=64), policy.observation_spec) < 1
    # where activations weigh most, twice the rows are twice of it
    few, many = (update_peak(policy, Load(rows), policy.observation_spec) for rows in (64, 128))
    assert 1.7 < many / few < 2.1


@pytest.mark.parametrize("bf16_base", [False, True])
@pytest.mark.parametrize("name", ["parallel", "smolvla"])
def test_an_adapted_policy_needs_what_it_is_said_to(name: str, bf16_base: bool) -> None:
    targets, heads = ("language_model", "text_model", "lm_expert"), ("projector", "action_out_proj")
    cfg = LoraCfg(rank=3, targets=targets, heads=heads, bf16_base=bf16_base)
    policy = kit.MAKE[name]()
    known = {part for key, _ in policy.named_parameters() for part in key.split(".")}
    cfg = replace(cfg, **{f: tuple(n for n in getattr(cfg, f) if n in known) for f in ("targets", "heads")})
    description = policy.to_json()
    adapt(policy, cfg, lambda: probe(policy))
    with on_meta_device():
        alike = described(description)
        stand_in_adapters(alike, cfg)
        found = estimate_memory(alike, Load(rows=5), alike.observation_spec)
    real = estimate_memory(policy, Load(rows=5), policy.observation_spec)
    assert found._replace(update=0) == real._replace(update=0) and found.learning < 0.6 * found.parameters
    assert found.update == pytest.approx(real.update, rel=0.05)


SEEN = """
import gc, sys, threading, time, torch, psutil
sys.path.append(sys.argv[1])
import tests.memory_estimate.test_estimate as t
policy, rows = t.large(), int(sys.argv[2])
t.once(t.grpo.policy_on(t.grpo.tabletop(1)), 4)
gc.collect()
me = psutil.Process()
weights = sum(x.numel() * 4 for x in policy.parameters())
before, peak, over = me.memory_info().rss - weights, [0], threading.Event()
def watch():
    while not over.wait(0.002):
        peak[0] = max(peak[0], me.memory_info().rss)
threading.Thread(target=watch, daemon=True).start()
t.once(policy, rows)
over.set()
print(peak[0] - before)
"""


def large() -> Any:
    """Some five million weights."""
    sizes = {"vision_width": 96, "vision_depth": 4, "width": 256, "depth": 5, "heads": 4, "mlp": 768, "horizon": 4}
    return grpo.policy_on(grpo.tabletop(1), **sizes)


def once(policy: Any, rows: int) -> None:
    """An update of GRPO's loss by the engine, as its learner makes it."""
    from robotrl.algos.grpo import GrpoLoss
    from robotrl.engine.engine import Engine, ParameterGroup
    from robotrl.learners.token_policy import TokenActing

    engine = Engine(
        GrpoLoss(policy, TokenActing(), grpo.CFG),
        (ParameterGroup("policy.", 1.0),),
        minibatch=rows,
        carry={"updates": 0.0, "lr_scale": 1.0},
        mode="eager",
        updates_per_call=1,
    )
    obs = {key: x[:1].expand(rows, *x.shape[1:]).clone() for key, x in grpo.tabletop(1).reset(0).items()}
    shape = (rows, policy.horizon, policy.action_width)
    data = {f"obs/{key}": obs[key] for key in policy.observation_spec}
    data |= {"tokens": torch.zeros(shape, dtype=torch.int64), "log_prob": torch.zeros(shape)}
    data |= {"advantage": torch.ones(rows), "weight": torch.ones(shape)}
    engine.run(data, torch.arange(rows), rows, "test")


def test_a_process_is_seen_to_need_what_was_estimated() -> None:
    """Five million weights; what autograd keeps weighs some twice as much as Adam's vectors."""
    policy, rows = large(), 96
    size = sum(x.numel() for x in policy.parameters())
    assert 4.5e6 < size < 6e6
    with on_meta_device():
        alike = described(policy.to_json())
        found = estimate_memory(alike, Load(rows), alike.observation_spec)
    command = [sys.executable, "-c", SEEN, str(ROOT), str(rows)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    seen = int(done.stdout.split()[-1])
    print(f"{rows} rows: seen {seen / 1e6:.0f} MB, estimated {found.total / 1e6:.0f} MB")
    assert 1 / FACTOR < seen / found.total < FACTOR


# a run


def test_what_a_config_asks_for() -> None:
    """Four envs' ten steps are four decisions of three steps each; a frame of a scene lies beside each chunk."""
    policy: Any = walks.flow()
    cfg = TrainCfg(SimCfg("mujoco/peg-insert", num_envs=8), walks.REINFLOW, walks.FLOW)
    own = sum(4 * p.numel() for p in policy.parameters())
    chain = replace(walks.REINFLOW, minibatch=64, microbatch=16, num_steps=9, ema=0.9)
    assert gradient_rows(chain.memory) == 16
    wanted = Load(16, policy.denoising_steps, 4 * 8 * 5, average=True, parts=True, beside=own)
    assert load_of(replace(cfg, algo=chain), policy, 16) == wanted
    # a density needs one evaluation, whatever the steps
    assert load_of(replace(cfg, algo=walks.PPO), walks.gaussian(), 64).evaluations == 1
    assert gradient_rows(MemoryNeeds()) is None
    assert load_of(replace(cfg, algo=replace(grpo.CFG, minibatch=64)), policy, 64) == Load(64)
    clone = BcCfg(batch=32, microbatch=8, ema=0.0, grounding_coef=1.0)
    assert load_of(replace(cfg, algo=clone), policy, 8) == Load(16, parts=True)


def test_several_processes_share_a_minibatch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takes the gradient of its part, whether or not what learns is spread; parts that are given stay as given."""
    whole = replace(grpo.CFG, minibatch=64)
    parts = replace(whole, microbatch=4)
    assert [gradient_rows(whole.memory, n) for n in (1, 4)] == [64, 16] and gradient_rows(parts.memory, 4) == 4
    assert gradient_rows(BcCfg(batch=32).memory, 8) == 4
    policy: Any = walks.flow()
    cfg = TrainCfg(SimCfg("mujoco/peg-insert", num_envs=8), whole, walks.FLOW)
    shared = replace(cfg, algo=parts, fsdp=True)
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert processes() == 4
    assert load_of(cfg, policy, 16) == Load(16)
    assert load_of(shared, policy, 4) == Load(4, parts=True, processes=4)
    monkeypatch.setenv("WORLD_SIZE", "16")
    assert load_of(shared, policy, 4) == Load(4, processes=16), "a part is all that falls to a process"


def test_networks_beside_the_policy_are_counted(tmp_path: Path) -> None:
    """An averaged policy, what a critic reads by, SRPO's eye, a teacher; copies of an adapted policy share weights."""
    clone = grpo.saved(tmp_path / "clone")
    stored = describe(clone).weights_bytes
    policy = grpo.policy_on(grpo.tabletop(1))
    policy.net.language_model.requires_grad_(False)
    every = 4 * sum(p.numel() for p in policy.parameters())
    learning = 4 * sum(p.numel() for p in policy.parameters() if p.requires_grad)
    eye = 4 * sum(p.numel() for p in policy.vision_encoder().parameters())
    assert 0 < eye < every and 0 < learning < every
    base = grpo.run_cfg(clone)

    def held(algo: Any, rank: int = 0) -> int:
        return beside(replace(base, algo=algo, lora=LoraCfg(rank=rank)), policy)

    assert held(grpo.CFG) == 0
    assert held(replace(grpo.CFG, ema=0.9)) == every and held(replace(grpo.CFG, ema=0.9), rank=4) == learning
    assert held(replace(grpo.CFG, progress="embedding")) == eye
    assert held(replace(grpo.CFG, progress="embedding", encoder=f"run:{clone}")) == stored
    assert held(replace(grpo.CFG, progress="embedding", encoder="places:state,meant")) == 0
    assert held(OpdCfg(teacher=str(clone))) == stored and held(OpdCfg(teacher=str(clone), ema=0.9)) == stored + every
    assert held(VlaRlCfg()) == every and held(VlaRlCfg(), rank=4) == learning
    with on_meta_device():
        alike = described(policy.to_json())
        assert beside(replace(base, algo=replace(grpo.CFG, progress="embedding", ema=0.9)), alike) == every + eye
        assert all(p.requires_grad for p in alike.parameters()), "a copy was frozen, and not what it is of"
        bare, more = (estimate_memory(alike, Load(1, beside=many), alike.observation_spec) for many in (0, 1000))
    assert more.weights == bare.weights + 1000 and more.total == bare.total + 1000


def test_moments_and_gradients_in_parts_take_less_and_activations_as_much() -> None:
    """Of a policy whose weights outweigh its activations: by hand but for the activations."""
    policy = large()
    learning = 4 * sum(x.numel() for x in policy.parameters() if x.requires_grad)
    with on_meta_device():
        alike = described(policy.to_json())
        whole, two, eight = (
            estimate_memory(alike, Load(1, processes=count), alike.observation_spec) for count in (1, 2, 8)
        )
    assert whole.optimizer == 2 * learning and two.optimizer == 2 * learning and eight.optimizer == learning // 2
    assert whole.weights == two.weights == eight.weights
    assert two.update - eight.update == learning - learning // 4
    assert eight.total < whole.total


def test_an_update_takes_little_more_than_its_gradient() -> None:
    """Without a compiler the elements are moved some at a time."""
    policy = large()
    learning = 4 * sum(x.numel() for x in policy.parameters() if x.requires_grad)
    with on_meta_device():
        alike = described(policy.to_json())
        assert update_peak(alike, Load(1), alike.observation_spec) < 5 * learning


def said(**parts: int) -> MemoryEstimate:
    return MemoryEstimate(
        **{"parameters": 10, "learning": 10, "weights": 0, "optimizer": 0, "update": 0, "stored": 0, **parts}
    )


def test_what_cannot_fit_is_refused_with_what_to_change() -> None:
    cfg: Any = SimpleNamespace(algo=grpo.CFG, lora=LoraCfg(), recompute=False, fsdp=False)
    with pytest.raises(ConfigError, match=r"estimated: 3 GiB .*expected at most the 2 GiB .*set lora.rank \(e.g. 32\)"):
        check_memory_fits(said(weights=GIB, optimizer=2 * GIB), 2 * GIB, lambda need: advice(cfg, need))
    adapted: Any = SimpleNamespace(algo=grpo.CFG, lora=LoraCfg(rank=4), recompute=False, fsdp=False)
    need = said(update=2 * GIB, weights=GIB)
    assert advice(adapted, need) == "set recompute, or choose a smaller algo.microbatch"
    adapted.recompute = True
    assert advice(adapted, need) == "choose algo.bf16, or a smaller algo.microbatch"
    adapted.algo = replace(grpo.CFG, bf16=True)
    assert advice(adapted, need) == "choose a smaller algo.microbatch"
    assert "sim.num_envs" in advice(adapted, said(stored=2 * GIB, update=GIB))
    check_memory_fits(said(weights=2 * GIB), 2 * GIB, lambda need: advice(cfg, need))


def test_a_run_says_what_it_needs_or_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clone = grpo.saved(tmp_path / "clone")
    cfg: TrainCfg[Any, Any] = replace(grpo.run_cfg(clone), lora=LoraCfg(rank=4))
    found = describe(clone)
    assert found.description["kind"] == "token-vla" and found.weights_bytes > 77856 * 4
    assert announce(cfg) is None, "a small one"
    monkeypatch.setattr("robotrl.memory_estimate.check.SMALL_BYTES", 0)
    need = announce(cfg)
    assert need is not None and "memory, estimated: " in capsys.readouterr().err
    monkeypatch.setenv("WORLD_SIZE", "4")
    shared = announce(cfg)
    assert shared is not None and shared.update < need.update and shared.weights == need.weights
    monkeypatch.delenv("WORLD_SIZE")
    monkeypatch.setattr("robotrl.memory_estimate.check.available", lambda device: need.total - 1)
    with pytest.raises(ConfigError, match=r"memory, estimated: .*that are free"):
        train(cfg, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    with pytest.raises(DataError, match="does not exist"):
        describe(tmp_path / "nothing")
