"""The update engine against torch's own Adam, and its compiled function against the eager one."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import robotrl.engine.engine
from robotrl.engine.engine import Context, Engine, EngineMode, LossModule, LossOut, ParameterGroup, Updates
from robotrl.engine.flat_params import flatten
from robotrl.errors import ConfigError, NumericsError
from tests.kits.paths_kit import ROOT
from tests.kits.refusals import raises_naming


class Two(LossModule):
    """Two small networks with a loss each; the carry is "lr", the learning rate of `a`, and "calls"."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1))
        self.b = nn.Linear(3, 1)

    def forward(self, batch: dict[str, Tensor], context: Context) -> LossOut:
        lr, calls = context.carry["lr"], context.carry["calls"]
        error_a = ((self.a(batch["x"])[:, 0] - batch["y"]) ** 2).mean()
        error_b = ((self.b(batch["x"])[:, 0] - batch["y"]) ** 2).mean()
        info = {"error_a": error_a, "calls": calls}
        return LossOut(error_a + error_b, info, (lr, lr * 0 + 1e-2), {"lr": lr, "calls": calls + 1})


def data(rows: int = 40, seed: int = 1) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, 3, generator=generator)
    return {"x": x, "y": x.sum(1).sin()}


def engine(lr: float = 1e-3, minibatch: int = 8, norm: float = 0.5, mode: str = "eager") -> Engine:
    groups = (ParameterGroup("a.", norm), ParameterGroup("b.", norm))
    return Engine(Two(), groups, minibatch=minibatch, carry={"lr": lr, "calls": 0.0}, mode=mode)  # pyright: ignore


def values(of: Engine) -> list[float]:
    return of.flat.tolist()


def test_it_does_what_clipping_and_adam_of_torch_do():
    ours = engine()
    theirs = Two()
    optimizers = [
        torch.optim.Adam(theirs.a.parameters(), lr=1e-3, eps=1e-5),
        torch.optim.Adam(theirs.b.parameters(), lr=1e-2, eps=1e-5),
    ]
    rows = torch.randperm(40, generator=torch.Generator().manual_seed(2))
    everything = data()
    norms = []
    for part in rows.split(8):
        out = theirs(
            {k: v[part] for k, v in everything.items()},
            Context({"lr": torch.zeros(()), "calls": torch.zeros(())}, {}, ""),
        )
        for optimizer in optimizers:
            optimizer.zero_grad()
        out.loss.backward()
        norms.append([float(nn.utils.clip_grad_norm_(m.parameters(), 0.5)) for m in (theirs.a, theirs.b)])
        for optimizer in optimizers:
            optimizer.step()
    updates = ours.run(everything, rows, 40, "here")
    expected = torch.cat([p.detach().reshape(-1) for p in theirs.parameters()])
    assert torch.allclose(ours.flat, expected, atol=1e-7)
    found = torch.stack([updates.info["grad_norm/a."], updates.info["grad_norm/b."]], 1)
    assert torch.allclose(found, torch.tensor(norms), rtol=1e-5)
    assert max(max(n) for n in norms) > 0.5  # something was clipped


class Counting(Two):
    """Notes the threads that it computes with."""

    seen: list[int]

    def forward(self, batch: dict[str, Tensor], context: Context) -> LossOut:
        self.seen.append(torch.get_num_threads())
        return super().forward(batch, context)


@pytest.mark.parametrize("fails", [False, True])
def test_updates_have_threads_of_their_own(fails):
    loss = Counting()
    loss.seen = []
    groups = (ParameterGroup("a.", 0.5), ParameterGroup("b.", 0.5))
    ours = Engine(loss, groups, minibatch=8, carry={"lr": 1e-3, "calls": 0.0}, mode="eager", threads=2)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        given = data()
        if fails:
            given["y"][3] = torch.nan
            with pytest.raises(NumericsError):
                ours.run(given, torch.arange(40), 40, "here")
        else:
            ours.run(given, torch.arange(40), 40, "here")
        assert loss.seen == [2] * 5 and torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)


def test_every_learner_gives_its_engine_the_threads_of_the_run():
    made = 0
    for path in [*(ROOT / "robotrl/algos").glob("*.py"), *(ROOT / "robotrl/learners").glob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "Engine":
                made += 1
                assert "setup.update_threads" in [ast.unparse(k.value) for k in node.keywords if k.arg == "threads"], (
                    path
                )
    assert made >= 6


def test_the_networks_themselves_move():
    loss = Two()
    run = Engine(
        loss,
        (ParameterGroup("a.", 1.0), ParameterGroup("b.", 1.0)),
        minibatch=8,
        carry={"lr": 1e-3, "calls": 0.0},
        mode="eager",
    )
    before = loss.b.weight.detach().clone()
    run.run(data(), torch.arange(40), 40, "here")
    assert not torch.equal(loss.b.weight, before)
    assert torch.equal(run.flat[-4:-1], loss.b.weight[0])
    # and loading weights into a network is loading them into the engine
    loss.load_state_dict(Two().state_dict())
    assert torch.equal(run.flat[-4:-1], Two().b.weight[0])


def test_the_last_minibatch_is_filled_up_from_the_beginning():
    short, spelled = engine(), engine()
    order = torch.arange(20)
    short.run(data(), order, 40, "here")
    spelled.run(data(), torch.cat([order, order[:4]]), 40, "here")
    assert values(short) == values(spelled)
    # fewer rows than a minibatch holds
    assert len(engine(minibatch=64).run(data(), order, 40, "here").info["loss"]) == 1


def test_a_group_without_learning_rate_stands_still_with_its_moments():
    run = engine(lr=0.0)
    before = values(run)
    run.run(data(), torch.arange(40), 40, "here")
    state = run.state()
    cut = 3 * 5 + 5 + 5 + 1
    assert values(run)[:cut] == before[:cut]
    assert values(run)[cut:] != before[cut:]
    assert not state["first"][:cut].any()
    assert state["first"][cut:].any()
    assert state["steps"].tolist() == [0, 5]


def test_the_carry_goes_from_one_minibatch_to_the_next_and_from_one_call_to_the_next():
    run = engine()
    assert run.run(data(), torch.arange(40), 40, "here").info["calls"].tolist() == [0, 1, 2, 3, 4]
    assert run.run(data(), torch.arange(8), 40, "here").info["calls"].tolist() == [5]
    assert {name: float(x) for name, x in run.carry.items()} == pytest.approx({"lr": 1e-3, "calls": 6})


def test_it_goes_on_identically_from_a_saved_state():
    run = engine()
    run.run(data(), torch.arange(40), 40, "here")
    saved = {name: tensor.clone() for name, tensor in run.state().items()}
    weights = run.flat.clone()
    run.run(data(), torch.arange(40), 40, "here")
    fresh = engine()
    fresh.flat.copy_(weights)
    fresh.load(saved)
    fresh.run(data(), torch.arange(40), 40, "here")
    assert values(fresh) == values(run)


def test_what_is_not_finite_is_named_and_not_taken():
    run = engine()
    spoiled = data()
    spoiled["y"][20] = float("nan")
    expected = engine()
    expected.run(data(), torch.arange(16), 40, "here")
    with pytest.raises(NumericsError, match=r"iteration 7, minibatch 2: loss is nan .*: expected finite"):
        run.run(spoiled, torch.arange(24), 40, "iteration 7")
    assert values(run) == values(expected)


class Chase(LossModule):
    """`a` learns, `b` follows the average of `a` unless the phase leaves it out, `c` is frozen."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.c = nn.Linear(3, 1), nn.Linear(3, 1), nn.Linear(3, 1)
        self.c.requires_grad_(False)

    def forward(self, batch: dict[str, Tensor], context: Context) -> LossOut:
        x, rate = batch["x"], batch["x"].new_tensor(1e-2)
        target = torch.nn.functional.linear(x, context.average["a.weight"], context.average["a.bias"])
        loss = ((self.a(x)[:, 0] - batch["y"]) ** 2).mean()
        if context.phase == "a":
            return LossOut(loss, {"seen": target.mean()}, (rate, None))
        loss = loss + ((self.b(x) - target - self.c(x)) ** 2).mean()
        return LossOut(loss, {"other": target.mean()}, (rate, rate))


def chase(decay: float = 0.9, ramp: bool = False, mode: str = "eager") -> Engine:
    groups = (ParameterGroup("a.", 1.0, decay, ramp), ParameterGroup("b.", 1.0))
    return Engine(Chase(), groups, minibatch=8, mode=mode)  # pyright: ignore


@pytest.mark.parametrize("ramp", [False, True])
def test_averages_follow_their_group_and_are_given_to_the_loss(ramp):
    run = chase(ramp=ramp)
    weight, bias = (p.detach().clone() for p in Chase().a.parameters())
    for n in range(3):
        seen = run.run(data(), torch.arange(8), 40, "here", "a").info["seen"]
        assert float(seen) == pytest.approx(float((data()["x"][:8] @ weight.T + bias).mean()), abs=1e-6)
        decay = min(0.9, (1 + n) / (10 + n)) if ramp else 0.9
        weight = decay * weight + (1 - decay) * run.flat[:3]
        bias = decay * bias + (1 - decay) * run.flat[3:4]
        assert torch.allclose(run.averages("a.")["weight"], weight, atol=1e-7)
    into = nn.Linear(3, 1)
    run.write_average("a.", into)
    assert torch.allclose(into.weight, weight, atol=1e-7)


def test_a_phase_trains_its_groups_alone_and_what_is_frozen_stays():
    run = chase()
    before = values(run)
    out = run.run(data(), torch.arange(40), 40, "here", "a")
    assert "grad_norm/b." not in out.info
    assert run.state()["steps"].tolist() == [5, 0]
    assert values(run)[4:] == before[4:]
    assert not run.state()["first"][4:].any()
    both = run.run(data(), torch.arange(40), 40, "here", "both")
    assert "other" in both.info
    assert "seen" not in both.info
    assert run.state()["steps"].tolist() == [10, 5]
    assert values(run)[4:] != before[4:]
    assert len(run.flat) == 8  # of a and b; c is no part of it


def test_an_average_must_have_a_decay():
    with pytest.raises(ConfigError, match=r"the average of 'a\.' is 1\.0: expected 0 or more and below 1"):
        chase(decay=1.0)


def test_phases_and_averages_compile_to_the_same_numbers():
    compiled, eager = chase(mode="compiled"), chase()
    for run in (compiled, eager):
        for phase in ("a", "both", "a"):
            run.run(data(), torch.arange(40), 40, "here", phase)
    assert compiled.mode == "compiled"
    assert torch.allclose(compiled.flat, eager.flat, atol=1e-6)
    for name, value in compiled.state().items():
        assert torch.allclose(value, eager.state()[name], atol=1e-6), name


def test_a_phase_that_cannot_be_compiled_leaves_the_others_as_they_are(monkeypatch):
    mixed, eager = chase(mode="compiled"), chase()
    mixed.run(data(), torch.arange(40), 40, "here", "a")

    def refuse(*arguments: object) -> Tensor:
        raise RuntimeError("no compiler any more")

    monkeypatch.setattr(robotrl.engine.engine, "compiled", refuse)
    with pytest.warns(UserWarning, match="no compiler any more"):
        mixed.run(data(), torch.arange(40), 40, "here", "both")
    mixed.run(data(), torch.arange(40), 40, "here", "a")
    for phase in ("a", "both", "a"):
        eager.run(data(), torch.arange(40), 40, "here", phase)
    assert mixed.mode == "eager"
    assert torch.allclose(mixed.flat, eager.flat, atol=1e-6)


class Watched(Two):
    """Writes down how many rows it sees; "calls" of its carry is the largest error of the last minibatch."""

    largest = frozenset({"worst"})

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[int] = []

    def forward(self, batch: dict[str, Tensor], context: Context) -> LossOut:
        self.rows.append(len(batch["x"]))
        out = super().forward(batch, context)
        worst = ((self.a(batch["x"])[:, 0] - batch["y"]) ** 2).max()
        return out._replace(info={**out.info, "worst": worst}, carry=context.carry)

    def next_carry(self, carry: dict[str, Tensor], info: Mapping[str, Tensor]) -> dict[str, Tensor]:
        lr = torch.where(info["error_a"] > 0.5, carry["lr"] * 0.9, carry["lr"] * 1.1)
        return {"calls": info["worst"], "lr": lr}


def watched(microbatch: int | None, mode: EngineMode = "eager") -> tuple[Watched, Engine]:
    loss = Watched()
    groups = (ParameterGroup("a.", 0.5, average=0.9), ParameterGroup("b.", 0.5))
    carry = {"lr": 1e-2, "calls": 0.0}
    return loss, Engine(loss, groups, minibatch=8, carry=carry, mode=mode, microbatch=microbatch)


def assert_alike(one: Engine, other: Engine, first: Updates, second: Updates) -> None:
    assert first.info.keys() == second.info.keys()
    for name in first.info:
        assert torch.allclose(first.info[name], second.info[name], rtol=1e-4, atol=1e-6), name
    assert torch.allclose(one.flat, other.flat, rtol=1e-5, atol=1e-6)
    for name, value in one.state().items():
        assert torch.allclose(value, other.state()[name], rtol=1e-4, atol=1e-6), name


@pytest.mark.parametrize("microbatch", [8, 4, 1])
def test_a_minibatch_in_parts_gives_the_numbers_of_the_whole(microbatch):
    """Gradients, what is logged (means and the largest), and what a schedule makes of it."""
    _, whole = watched(None)
    loss, parts = watched(microbatch)
    order = torch.randperm(40, generator=torch.Generator().manual_seed(3))
    first, second = (run.run(data(), order, 40, "here") for run in (whole, parts))
    assert_alike(whole, parts, first, second)
    assert set(loss.rows) == {microbatch}
    # the schedule moved both ways, and saw the largest of all rows
    assert len({round(float(x), 6) for x in first.info["calls"]}) == 5
    assert first.info["worst"][:-1].tolist() == pytest.approx(first.info["calls"][1:].tolist())


@pytest.mark.timeout(300)
def test_parts_compile_to_the_same_numbers():
    _, slow = watched(None)
    _, fast = watched(4, "compiled")
    for seed, size in ((1, 40), (2, 19)):
        order = torch.randperm(size, generator=torch.Generator().manual_seed(seed))
        first, second = (run.run(data(size, seed), order, 40, "here") for run in (slow, fast))
        assert_alike(slow, fast, first, second)
    assert fast.mode == "compiled"
    assert fast.compile_s > 0


def test_parts_have_phases_too():
    groups = (ParameterGroup("a.", 1.0, 0.9), ParameterGroup("b.", 1.0))
    parts = Engine(Chase(), groups, minibatch=8, mode="eager", microbatch=2)
    whole = chase()
    for phase in ("a", "both", "a"):
        first, second = (run.run(data(), torch.arange(40), 40, "here", phase) for run in (whole, parts))
        assert_alike(whole, parts, first, second)


def test_what_is_not_finite_in_one_part_is_not_taken():
    _, run = watched(2)
    spoiled = data()
    spoiled["y"][20] = float("nan")
    before = values(run)
    with pytest.raises(NumericsError, match=r"here, minibatch 0: loss is nan .*: expected finite"):
        run.run(spoiled, torch.arange(16, 24), 40, "here")
    assert values(run) == before


@pytest.mark.parametrize("microbatch", [0, -8, 3, 16])
def test_parts_must_divide_the_minibatch(microbatch):
    expected = rf"algo\.microbatch is {microbatch}: expected a divisor of the 8 rows of a minibatch"
    with pytest.raises(ConfigError, match=expected):
        watched(microbatch)


def test_groups_must_divide_the_parameters():
    for groups in ((ParameterGroup("a.", 1.0),), (ParameterGroup("a.", 1.0), ParameterGroup("", 1.0))):
        with pytest.raises(ConfigError, match="do not divide the parameters"):
            Engine(Two(), groups, minibatch=8)
    with raises_naming(ConfigError, "algo.minibatch", 0, 1):
        engine(minibatch=0)


def test_flatten_refuses_a_mixture():
    with pytest.raises(ConfigError, match="several types or devices"):
        flatten([nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1, dtype=torch.float64))])


@pytest.mark.timeout(300)
def test_compiled_and_eager_give_the_same_numbers_and_one_shape_serves_data_of_any_size():
    fast, slow = engine(mode="compiled"), engine()
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*could not be compiled")
        for seed, size in ((1, 40), (2, 33), (3, 7)):
            order = torch.randperm(size, generator=torch.Generator().manual_seed(seed))
            a = fast.run(data(size, seed), order, 40, "here")
            spent = fast.compile_s
            b = slow.run(data(size, seed), order, 40, "here")
            assert a.info.keys() == b.info.keys()
            for name in a.info:
                assert torch.allclose(a.info[name], b.info[name], rtol=1e-4, atol=1e-6), name
            assert torch.allclose(fast.flat, slow.flat, rtol=1e-5, atol=1e-6)
    assert fast.mode == "compiled"
    assert spent == fast.compile_s > 0


@pytest.mark.timeout(300)
def test_without_a_compiler_it_warns_once_and_gives_the_same_numbers(tmp_path: Path):
    script = """
import sys, warnings
sys.path.append(sys.argv[1])
import torch
from tests.engine.test_engine import data, engine, values
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    run = engine(mode="compiled")
    for _ in range(2):
        run.run(data(), torch.arange(40), 40, "here")
slow = engine()
for _ in range(2):
    slow.run(data(), torch.arange(40), 40, "here")
assert run.mode == "eager"
assert values(run) == values(slow)
ours = [str(w.message) for w in caught if "could not be compiled" in str(w.message)]
assert len(ours) == 1, [str(w.message) for w in caught]
print(ours[0])
"""
    env = {
        **os.environ,
        "CXX": str(tmp_path / "no-such-compiler"),
        "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache"),
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
    }
    found = subprocess.run(
        [sys.executable, "-c", script, str(ROOT)], env=env, capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, found.stderr
    assert "runs uncompiled with the same results" in found.stdout
    assert "algo.engine=eager" in found.stdout
