"""Where the driving world's kernels run: threads of a processor, memory of its own, CUDA."""

import types
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

import robotrl
from robotrl.errors import ConfigError
from robotrl.sims.bev import kernels
from robotrl.sims.bev import sim as sim_module
from robotrl.sims.driving import kernels as shared
from robotrl.sims.driving import rewards, tables
from robotrl.sims.driving.backends.backend import Threads, put
from robotrl.sims.driving.backends.cuda import launcher
from robotrl.sims.driving.plan import actions_of
from robotrl.sims.driving.render import raster
from robotrl.sims.driving.render import vectors as observe

SIM = "bev/drive"


@given(threads=st.integers(1, 5), count=st.integers(0, 40))
def test_threads_work_on_each_item_once(threads: int, count: int) -> None:
    machine = Threads(threads)
    seen = machine.zeros(count, np.int64)

    def mark(array: NDArray[np.int64], low: int, high: int) -> None:
        array[low:high] += 1

    machine.run(mark, count, seen)
    machine.close()
    assert (seen == 1).all()


def test_an_error_in_a_thread_reaches_the_caller() -> None:
    machine = Threads(2)

    def fail(low: int, high: int) -> None:
        if high == 8:
            raise ValueError("the second half")

    with pytest.raises(ValueError, match="second half"):
        machine.run(fail, 8)
    machine.close()


def test_what_is_put_into_a_machine_lies_in_its_memory() -> None:
    machine = Fenced()
    rules = rewards.rules(rewards.carl(), actions_of("controls", None, 4), 45.0, 2.4, 0.1)
    there = put(machine, rules)
    assert np.array_equal(there.weights, rules.weights) and there.hold == rules.hold
    assert machine.holds(there.weights) and not machine.holds(rules.weights)


class Fenced(Threads):
    """A machine whose kernels reach no memory but its own: of all other arrays they are given copies, as a GPU is."""

    def __init__(self) -> None:
        super().__init__(1)
        self.waits = 0
        self._held: list[NDArray[Any]] = []

    def zeros(self, shape: Any, dtype: Any) -> NDArray[Any]:
        out = super().zeros(shape, dtype)
        self._held.append(out)
        return out

    def holds(self, array: NDArray[Any]) -> bool:
        return array.size == 0 or any(np.may_share_memory(array, held) for held in self._held)

    def there(self, value: Any) -> Any:
        if isinstance(value, tuple):
            return type(value)(*(self.there(field) for field in value))
        if isinstance(value, np.ndarray) and not self.holds(value):
            return value.copy()
        return value

    def run(self, kernel: Any, count: int, *args: Any) -> None:
        super().run(kernel, count, *(self.there(arg) for arg in args))

    def wait(self) -> None:
        self.waits += 1


@pytest.mark.parametrize("options", [{"obs": "both"}, {"obs": "raster", "packed": True}, {"actions": "trajectory"}])
def test_a_machine_needs_no_memory_but_its_own(monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]) -> None:
    """What kernels write outside of it would be lost on a GPU."""
    machine = Fenced()
    plain = robotrl.make_sim(SIM, num_envs=24, seed=3, threads=1, **options)
    monkeypatch.setattr(sim_module, "machine_of", lambda device, threads: machine)
    fenced = robotrl.make_sim(SIM, num_envs=24, seed=3, **options)
    sims = (plain, fenced)
    generator = torch.Generator().manual_seed(0)
    for sim in sims:
        sim.reset(seed=3, options={"stagger": True})
    ended = 0
    for step in range(60):
        spec = plain.action_spec
        low, high = torch.tensor(spec.low), torch.tensor(spec.high)
        actions = low + (high - low) * torch.rand(24, *spec.shape, generator=generator)
        before = machine.waits
        one, other = (sim.step(actions) for sim in sims)
        assert machine.waits > before
        ended += len(one.final_ids)
        for name, found, expected in (
            ("reward", other.reward, one.reward),
            ("terminated", other.terminated, one.terminated),
            ("final ids", other.final_ids, one.final_ids),
            *((key, other.obs[key], one.obs[key]) for key in one.obs),
            *((f"final {key}", other.final_obs[key], one.final_obs[key]) for key in one.final_obs),
        ):
            assert torch.equal(found, expected), (step, name)
    assert ended > 5
    state = plain.get_state()
    fenced.reset(seed=9)
    fenced.set_state(state)
    assert all(np.array_equal(fenced.get_state()[key], state[key]) for key in state)
    plain.close()
    fenced.close()


def test_a_gpu_that_is_not_there_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"device is 'cuda:63': this machine has cpu"):
        robotrl.make_sim(SIM, num_envs=2, device="cuda:63")


# CUDA


def arguments() -> list[tuple[Any, tuple[Any, ...]]]:
    """Each kernel with arguments of the types that a core gives it."""
    sim = robotrl.make_sim(SIM, num_envs=2, obs="both", threads=1)
    core = sim.core
    ids = np.zeros(2, np.int64)
    maps, world, vectors = core.bank.arrays, core.world, observe.make_vectors(np.zeros, 2, 8, 8, True, True)
    views = raster.make_views(np.zeros, raster.RasterCfg(96, 96, 2.0), 2, packed=False)
    terms = np.zeros((2, len(tables.TERMS)), np.float32)
    outcome = (core.reward, terms, terms, core.done, core.events, core.completion)
    return [
        (kernels.step_range, (maps, world, core.rules, vectors, np.zeros((2, 2), np.float32), *outcome)),
        (kernels.begin, (maps, world, *[ids] * 8, 800)),
        (shared.settle_range, (maps, world)),
        (shared.observe_envs, (maps, world, core.rules, vectors, ids)),
        (shared.draw_envs, (maps, world, views, raster.channel_table(), ids)),
    ]


def test_the_kernels_compile_for_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same source, to the assembly of an H100; no GPU is needed for that."""
    pytest.importorskip("numba_cuda")
    import numba
    import numba.cuda
    import numba.cuda.dispatcher as dispatcher

    hopper = (9, 0)
    monkeypatch.setattr(dispatcher, "get_current_device", lambda: types.SimpleNamespace(compute_capability=hopper))
    for kernel, given_args in arguments():
        signature = numba.types.void(numba.int64, numba.typeof(given_args))
        ptx, _ = numba.cuda.compile_ptx(launcher(kernel, numba.cuda), signature, cc=hopper)
        assert ".target sm_90" in ptx and ".visible .entry" in ptx


gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


@gpu
@pytest.mark.parametrize("options", [{"obs": "both"}, {"actions": "trajectory"}])
def test_a_gpu_steps_as_the_processor_does(options: dict[str, Any]) -> None:
    """From the same states one step agrees to what single precision and another's sines leave."""
    n = 256
    here = robotrl.make_sim(SIM, num_envs=n, seed=1, **options)
    there = robotrl.make_sim(SIM, num_envs=n, seed=1, device="cuda", **options)
    assert there.device.type == "cuda"
    here.reset(seed=1, options={"stagger": True})
    there.reset(seed=1, options={"stagger": True})
    expert = here.make_expert(noise=0.2)
    started = torch.ones(n, dtype=torch.bool)
    agreed: list[float] = []
    for _ in range(100):
        there.set_state(here.get_state())
        actions = expert.act(started)
        one, other = here.step(actions), there.step(actions.cuda())
        started = one.terminated | one.truncated
        same = started == (other.terminated | other.truncated).cpu()
        for key in one.obs:
            gap = (one.obs[key].float() - other.obs[key].cpu().float()).abs().flatten(1)
            # a box's edge on a pixel's centre may fall on either side
            same &= (gap > 1e-3).float().mean(1) < 0.01
        agreed.append(same.float().mean().item())
    assert min(agreed) > 0.97 and np.mean(agreed) > 0.995


@gpu
def test_a_gpu_drives_as_well_as_the_processor() -> None:
    """Whole episodes of the rule-based driver end alike."""
    completed: list[float] = []
    for device in ("cpu", "cuda"):
        sim = robotrl.make_sim(SIM, num_envs=384, seed=0, device=device)
        sim.queue_states(list(sim.state_ids("val")[:384]))
        sim.reset()
        expert = sim.make_expert(mode="brisk", seed=0)
        started = torch.ones(384, dtype=torch.bool, device=sim.device)
        first = torch.full((384,), float("nan"))
        while first.isnan().any():
            step = sim.step(expert.act(started))
            started = (step.terminated | step.truncated).clone()
            new = started.cpu() & first.isnan()
            first[new] = step.info["route_completion"].cpu()[new]
        completed.append(first.mean().item())
    assert completed[1] == pytest.approx(completed[0], abs=0.02)
