"""Perturbation families, worked by hand on walks on a line; then on a sim of MuJoCo, with the sim contract."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from robotrl.cli.commands.sim_flags import parse_options
from robotrl.errors import CapabilityError, ConfigError, DataError
from robotrl.registry import make_sim, sim_options
from robotrl.rollout.evaluate import Turn, run_episodes
from robotrl.sims.families.registry import FAMILIES, families_of
from robotrl.sims.perturbation import perturbed
from robotrl.spec import Spec, Step
from robotrl.spec.sim_options import PerturbCfg, with_values
from robotrl.testing.sims import CHECKS, SimCase
from tests.kits.door_sims import RestartWalk, SeenWalk
from tests.kits.walk_sim import Walk

ALL = {"place_m": 0.02, "mass": 0.2, "friction": 0.3, "noise": {"m": 0.002}}


def noise_of(ids: list[int], num_envs: int, action: float, seed: int = 0) -> dict[int, list[float]]:
    """Errors of the place by start, of episodes that move by one action."""
    sim = Walk(num_envs)
    wrapped = perturbed(sim, PerturbCfg(noise={"m": 0.01}), seed)
    found: dict[int, list[float]] = {}

    class Actor:
        def act(self, obs: dict[str, Tensor], turn: Turn) -> Tensor:
            for env, start in enumerate(turn.start.tolist()):
                if start >= 0:
                    found.setdefault(start, []).append(float(obs["walk"][env, 0] - sim._obs[env, 0]))
            return torch.full((num_envs, 1), action)

    run_episodes(Actor(), wrapped, ids)
    return found


def test_the_same_start_meets_the_same_noise_whatever_the_policy_seed_and_number_of_envs() -> None:
    one, other = noise_of([3, 12, 28], 2, 0.01), noise_of([28, 3, 12], 3, -0.02, seed=5)
    assert one.keys() == other.keys() == {3, 12, 28}
    for start in one:
        assert one[start][:5] == pytest.approx(other[start][:5], abs=1e-6)
    assert one[3][0] != pytest.approx(one[28][0], abs=1e-6)


def test_noise_has_the_deviation_that_is_asked_for_in_the_unit_alone() -> None:
    sim = Walk(2000)
    wrapped = perturbed(sim, PerturbCfg(noise={"m": 0.05}), 0)
    errors = (wrapped.reset(seed=0)["walk"] - sim._obs).numpy()
    assert errors[:, 0].std() == pytest.approx(0.05, rel=0.06) and abs(errors[:, 0].mean()) < 0.005
    assert not errors[:, 1].any()
    # an element stays within its bounds
    strong = perturbed(Walk(50), PerturbCfg(noise={"m": 100.0}), 0).reset(seed=0)["walk"]
    assert strong[:, 0].abs().max() == 2.0


def test_the_last_observation_and_a_restart_have_the_noise_of_their_own_episode() -> None:
    sim = RestartWalk(1, limit=2)
    wrapped = perturbed(sim, PerturbCfg(noise={"m": 0.01}), 0)
    wrapped.queue_states([7, 8, 9])
    wrapped.reset()
    wrapped.step(torch.zeros(1, 1))
    last = wrapped.step(torch.zeros(1, 1))
    assert float(last.final_obs["walk"][0, 1]) == 2.0 and wrapped.episode_keys.tolist() == [8]
    alone = noise_of([7], 1, 0.0)[7]
    assert float(last.final_obs["walk"][0, 0] - sim.tape[-1].next_obs[0, 0]) == pytest.approx(alone[2], abs=1e-6)
    # the start that was queued last
    wrapped.restart(torch.tensor([0]))
    assert wrapped.episode_keys.tolist() == [9]
    assert wrapped.step(torch.zeros(1, 1)).info["state_id"].tolist() == [9]


def test_the_starts_are_those_that_the_sim_would_have_drawn() -> None:
    plain, wrapped = Walk(3), perturbed(Walk(3), PerturbCfg(noise={"m": 0.01}), 0)
    for sim in (plain, wrapped):
        sim.reset(seed=4)
    for _ in range(30):
        a, b = plain.step(torch.ones(3, 1)), wrapped.step(torch.ones(3, 1))
        assert torch.equal(a.info["state_id"], b.info["state_id"]) and torch.equal(a.reward, b.reward)


def test_looks_change_by_the_episode_and_keep_to_the_picture() -> None:
    sim = SeenWalk(2)
    wrapped = perturbed(sim, PerturbCfg(looks_gain=0.5), 0)
    wrapped.queue_states([5, 6])
    wrapped.reset()
    first = wrapped.step(torch.zeros(2, 1)).obs
    gains = first["image"][:, 0, 0].double() / 51
    assert ((gains > 0.48) & (gains < 1.52)).all() and not torch.equal(gains[0], gains[1])
    second = wrapped.step(torch.zeros(2, 1)).obs["image"][:, 0, 0].double() / 102
    assert torch.allclose(gains, second, atol=0.02)
    # a critic's array and numbers are the truth
    assert torch.equal(first["hidden"], 2 * sim._obs[:, :1])


def test_a_shift_moves_the_picture_and_repeats_its_border() -> None:
    class Ramp(SeenWalk):
        def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> dict[str, Tensor]:
            obs = super().reset(seed, options)
            ramp = torch.arange(24, dtype=torch.uint8).reshape(4, 6, 1).expand(4, 6, 3)
            return obs | {"image": ramp.expand(self.num_envs, 4, 6, 3)}

    shown = perturbed(Ramp(40), PerturbCfg(looks_shift_px=1), 0).reset(seed=0)["image"][..., 0].long()
    whole = torch.arange(24).reshape(4, 6)
    possible = [
        whole[(torch.arange(4) - dy).clamp(0, 3)][:, (torch.arange(6) - dx).clamp(0, 5)]
        for dy in (-1, 0, 1)
        for dx in (-1, 0, 1)
    ]
    places = [next(k for k, one in enumerate(possible) if torch.equal(one, picture)) for picture in shown]
    assert len(set(places)) > 4


class InstructedWalk(Walk):
    """A walk that is told in words what to do."""

    vocabulary = ("", "walk", "to", "the", "goal")

    def __init__(self, num_envs: int) -> None:
        super().__init__(num_envs)
        self.observation_spec |= {
            "instruction": Spec(
                (5,), tuple("abcde"), ("1",) * 5, (0.0,) * 5, (4.0,) * 5, "int64", words=self.vocabulary
            )
        }

    def instructions(self) -> list[str]:
        return ["walk to the goal"] * self.num_envs

    def _words(self, rows: int) -> dict[str, Tensor]:
        return {"instruction": torch.tensor([[1, 2, 3, 4, 0]] * rows).reshape(rows, 5)}

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> dict[str, Tensor]:
        return super().reset(seed, options) | self._words(self.num_envs)

    def step(self, actions: Tensor) -> Step:
        out = super().step(actions)
        final = out.final_obs | self._words(len(out.final_ids))
        return out._replace(obs=out.obs | self._words(self.num_envs), final_obs=final)


def test_lost_words_are_left_out_of_observation_and_text_alike() -> None:
    wrapped = perturbed(InstructedWalk(20), PerturbCfg(words_lost=2), 0)
    heard = wrapped.reset(seed=0)["instruction"]
    assert (heard[:, :2] > 0).all() and not heard[:, 2:].any()
    texts = [" ".join(InstructedWalk.vocabulary[word] for word in row if word) for row in heard.tolist()]
    assert wrapped.instructions() == texts and len(set(texts)) > 3
    # one word stays
    assert (perturbed(InstructedWalk(3), PerturbCfg(words_lost=9), 0).reset(seed=0)["instruction"] > 0).sum(
        1
    ).tolist() == [1] * 3


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"place_m": 0.01}, r"perturb\.place_m is 0\.01, and Walk has no loose things .*: noise, delay$"),
        ({"looks_gain": 0.1}, r"perturb\.looks_gain is 0\.1, and Walk observes no color picture: .*: noise, delay$"),
        ({"looks_shift_px": 1}, r"perturb\.looks_shift_px is 1, and Walk observes no color picture"),
        ({"words_lost": 1}, r"perturb\.words_lost is 1, and Walk has no instruction"),
        ({"mass": 0.1}, r"perturb\.mass is 0\.1, and Walk lets no mass be set"),
        ({"friction": 0.1}, r"perturb\.friction is 0\.1, and Walk lets no friction be set"),
    ],
)
def test_a_sim_refuses_the_families_that_it_cannot_have_and_names_those_that_it_has(
    given: dict[str, Any], message: str
) -> None:
    with pytest.raises(CapabilityError, match=message):
        perturbed(Walk(1), PerturbCfg(**given), 0)


def test_sizes_out_of_range_and_units_that_nobody_observes_are_refused() -> None:
    for given, message in (
        ({"place_m": 0.5}, r"perturb\.place_m is 0\.5: expected a number from 0 to 0\.2 m"),
        ({"noise": {"m": -1.0}}, r"perturb\.noise m is -1"),
        ({"mass": 1.0}, r"perturb\.mass is 1\.0"),
        ({"noise": {"rad": 0.1}}, r"unit of perturb\.noise of Walk 'rad' is unknown: .*known: m, step"),
    ):
        with pytest.raises(ConfigError, match=message):
            perturbed(Walk(1), PerturbCfg(**given), 0)
    # a multiplier that the sim does not accept is refused before the first episode
    with pytest.raises(ConfigError, match=r"parameter 'friction' is \[0\..*: expected 0\.2 to 4"):
        make_sim("mujoco/push", num_envs=1, threads=1, perturb={"friction": 0.9})


def test_a_sim_that_takes_starts_in_another_order_is_found_out() -> None:
    class Backwards(Walk):
        def queue_states(self, ids: Any) -> None:
            super().queue_states(list(ids)[::-1])

    wrapped = perturbed(Backwards(2), PerturbCfg(noise={"m": 0.01}), 0)
    wrapped.reset(seed=0)
    with pytest.raises(CapabilityError, match=r"env 0 ran start .*, expected .*: perturbations by the start"):
        wrapped.step(torch.zeros(2, 1))


def test_delays_come_after_noise_and_a_drawn_delay_is_that_of_the_start() -> None:
    """An old observation is the noisy one of its time: noise is the sensor's, age the way's."""
    now = perturbed(Walk(2), PerturbCfg(noise={"m": 0.05}), 0)
    late = perturbed(Walk(2), PerturbCfg(noise={"m": 0.05}, obs_delay_steps=1), 0)
    for sim in (now, late):
        sim.queue_states([10, 11])
    before = now.reset()["walk"].clone()
    late.reset()
    for _ in range(3):
        actions = torch.full((2, 1), 0.01)
        shown = late.step(actions).obs["walk"]
        assert torch.equal(shown, before)
        before = now.step(actions).obs["walk"].clone()
    delays = []
    for num_envs in (2, 4):
        sim = perturbed(Walk(num_envs), PerturbCfg(action_delay_steps=3, draw_delay=True), 0)
        sim.queue_states([20, 21, 22, 23][:num_envs])
        sim.reset()
        delays.append(sim._delay[:2].tolist())
    assert delays[0] == delays[1]
    assert list(FAMILIES) == ["mass", "friction", "places", "looks", "words", "noise", "delay"]


def test_every_option_belongs_to_one_family() -> None:
    listed = [field for family in FAMILIES.values() for field in family.fields]
    assert sorted(listed) == sorted(vars(PerturbCfg()))


def test_the_command_line_sets_sizes() -> None:
    words = ["--sim.perturb.noise", "m", "0.005", "rad", "0.01", "--sim.perturb.mass", "0.2"]
    words += ["--sim.perturb.place-m", "0.01"]
    cfg: Any = parse_options(sim_options("mujoco/push"), "robotrl eval", words)
    assert cfg.perturb == PerturbCfg(noise={"m": 0.005, "rad": 0.01}, mass=0.2, place_m=0.01)
    # as a run stores it
    assert with_values(sim_options("mujoco/push"), {"perturb": {"noise": {"m": 0.005}}}, "x").perturb.noise == {
        "m": 0.005
    }


def test_things_masses_and_frictions_of_a_mujoco_sim_differ_by_the_start_alone() -> None:
    found: list[dict[int, tuple[Any, ...]]] = []
    for ids in ([5, 9], [9, 8, 5]):
        sim = make_sim("mujoco/push", num_envs=len(ids), threads=1, perturb={**ALL, "noise": None})
        sim.queue_states(ids)
        obs = sim.reset()["state"].numpy().copy()
        params = sim.get_params()
        rows = {start: (obs[k].tolist(), params["friction"][k], params["block_mass"][k]) for k, start in enumerate(ids)}
        found.append(rows)
    assert found[0][5] == found[1][5] and found[0][9] == found[1][9] and found[0][5][1:] != found[0][9][1:]
    assert abs(found[0][5][1] - 1.0) <= 0.3 and abs(found[0][5][2] - 1.0) <= 0.2
    assert families_of(make_sim("mujoco/push", num_envs=1)) == ("mass", "friction", "places", "noise", "delay")
    plain = make_sim("mujoco/push", num_envs=1, threads=1)
    plain.queue_states([5])
    names = plain.observation_spec["state"].names
    state = plain.reset()["state"][0].numpy()
    moved = {name: found[0][5][0][k] - float(state[k]) for k, name in enumerate(names)}
    # the block was moved, so the goal is as much nearer or farther; the hand stays
    assert 0 < abs(moved["block_to_goal_x_w"]) <= 0.02 + 1e-6
    assert moved["block_to_goal_x_w"] == pytest.approx(moved["block_to_obstacle_x_w"], abs=1e-6)
    assert moved["tip_to_block_x_w"] == pytest.approx(-moved["block_to_goal_x_w"], abs=1e-6)


def test_a_state_of_other_perturbations_is_refused() -> None:
    wrapped = perturbed(Walk(2), PerturbCfg(noise={"m": 0.01}), 0)
    wrapped.reset(seed=0)
    state = wrapped.get_state()
    del state["varied/steps"]
    with pytest.raises(DataError, match="state varied/steps has no place"):
        wrapped.set_state(state)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_a_perturbed_sim_keeps_the_contract(check: Any) -> None:
    def make(limit_s: float) -> Any:
        return lambda num_envs, seed: make_sim(
            "mujoco/push", num_envs=num_envs, seed=seed, threads=1, limit_s=limit_s, perturb=ALL
        )

    check(SimCase(make(60.0), make(0.5), most_envs=64))


def test_a_moved_thing_of_the_tabletop_is_measured_from_where_it_was_moved_to() -> None:
    sim = make_sim("mujoco/tabletop", num_envs=2, threads=1, perturb={"place_m": 0.02})
    sim.queue_states([3, 4])
    sim.reset()
    task = sim.sim.tabletop
    assert np.allclose(task._start, task.pos_w[..., :2], atol=1e-9)
