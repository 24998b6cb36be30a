"""Symmetries: their arithmetic by hand, whether the sim keeps to those it declares, and what cloning makes of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import robotrl
from robotrl.algos.bc import BcCfg
from robotrl.errors import CapabilityError, ConfigError
from robotrl.fn.symmetry import changed, combinations, composed, sayable, signed
from robotrl.learners.augmentation import Symmetric, changes_of
from robotrl.sims.mujoco.engine.planned_starts import PlannedStarts
from robotrl.sims.mujoco.tabletop.language import DIRECTIONS, MOVABLES, encode
from robotrl.spec import HasSymmetries
from robotrl.spec.symmetry import Look, Signed, Symmetry
from tests.kits.learner_kit import GAUSSIAN, same, setup, write_walks

SWAP = Symmetry(
    {"x": Signed((1, 0), (1.0, -1.0))}, {"p": Look(flipped=True)}, {"w": (0, 2, 1, 3)}, Signed((0,), (-1.0,))
)
TURN = Symmetry(
    {"x": Signed((1, 0), (-1.0, 1.0))}, {"p": Look(channels=(1, 2, 0))}, {"w": (0, 3, 1, 2)}, Signed((0,), (1.0,))
)


def observed() -> dict[str, torch.Tensor]:
    return {
        "x": torch.tensor([[3.0, 5.0]]),
        "p": torch.arange(12, dtype=torch.uint8).reshape(1, 2, 2, 3),
        "w": torch.tensor([[1, 3, 0]], dtype=torch.int32),
    }


def test_changes_by_hand() -> None:
    new = changed(observed(), SWAP)
    assert new["x"].tolist() == [[5.0, -3.0]]
    assert new["p"].tolist() == [[[[3, 4, 5], [0, 1, 2]], [[9, 10, 11], [6, 7, 8]]]]
    assert new["w"].tolist() == [[2, 3, 0]] and new["w"].dtype == torch.int32
    assert changed(observed(), TURN)["p"][0, 0, 0].tolist() == [1, 2, 0]
    with pytest.raises(KeyError, match="y"):
        changed({"y": torch.zeros(1, 2)}, SWAP)


@pytest.mark.parametrize(("first", "then"), [(SWAP, TURN), (TURN, SWAP), (TURN, TURN)])
def test_two_changes_make_one(first: Symmetry, then: Symmetry) -> None:
    one = changed(observed(), composed(first, then))
    two = changed(changed(observed(), first), then)
    assert all(torch.equal(one[key], two[key]) for key in two)
    action = torch.tensor([[2.0]])
    assert torch.equal(signed(action, composed(first, then).action), signed(signed(action, first.action), then.action))


def test_combinations_make_at_most_one_change_of_each_kind() -> None:
    assert combinations([]) == (None,)
    found = combinations([(SWAP,), (TURN, composed(TURN, TURN))])
    assert found[0] is None and len(found) == 6
    assert found[1:] == (TURN, composed(TURN, TURN), SWAP, composed(SWAP, TURN), composed(SWAP, composed(TURN, TURN)))


def test_what_may_be_said_is_what_is_said() -> None:
    """SWAP exchanges 1 and 2: of [1 3] and [2 3] each becomes the other, [1 1] becomes [2 2], which nobody says."""
    sentences = torch.tensor([[1, 3], [2, 3], [1, 1]])
    assert sayable(sentences, (None, SWAP), "w").tolist() == [[True, True], [True, True], [True, False]]


# the tabletop keeps to what it declares

CAMERAS = ("flat_front", "flat_top")
KINDS = ("mirror", "colours")


def tabletop(**options: Any) -> Any:
    return robotrl.make_sim("mujoco/tabletop", num_envs=26, seed=0, **{"image": CAMERAS, **options})


def mirrored(plans: np.ndarray) -> np.ndarray:
    """Start states in the mirror, written out; see `Tabletop.plan` for the columns."""
    out = plans.copy()
    said = plans[:, 4].astype(int)
    out[:, 4] = np.where(said < 0, -1, np.array([1, 0, 2, 3])[said])
    out[:, [6, 9, 11]] *= -1
    poses, mats = np.split(out[:, 12:-6].reshape(len(out), -1), [7 * len(MOVABLES)], axis=1)
    poses, mats = poses.reshape(len(out), -1, 7).copy(), mats.reshape(len(out), -1, 3).copy()
    poses[..., [1, 6]] *= -1
    mats[..., 1] *= -1
    out[:, 12:-6] = np.concatenate([poses.reshape(len(out), -1), mats.reshape(len(out), -1)], axis=1)
    return out


def recolored(plans: np.ndarray) -> np.ndarray:
    """Start states in which red is green, green is blue and blue is red, written out."""
    out = plans.copy()
    later = np.array([1, 2, 0, 4, 5, 3])
    for column in (1, 2, 3):
        said = plans[:, column].astype(int)
        out[:, column] = np.where(said < 0, -1, later[said])
    poses = plans[:, 12:54].reshape(len(out), 6, 7)
    mats, here = plans[:, 54:63].reshape(len(out), 3, 3), plans[:, 63:]
    poses[:, later], mats[:, later[:3]], here[:, later] = poses.copy(), mats.copy(), here.copy()
    out[:, 12:] = np.concatenate([poses.reshape(len(out), -1), mats.reshape(len(out), -1), here], axis=1)
    return out


def episodes(
    plans: Callable[[np.ndarray], np.ndarray], symmetry: Symmetry, steps: int, make: Callable[[], Any] = tabletop
) -> Iterator[tuple[Any, Any]]:
    """What two sims show: the first, changed, and one that starts at changed states and is told changed actions."""
    one, two = make(), make()
    plan = two.core.task.plan
    two.core._starts = PlannedStarts(lambda ids: plans(plan(ids)), seed=0)
    expert, started = one.make_expert(seed=0), torch.ones(one.num_envs, dtype=torch.bool)
    shown, wanted = (sim.reset(seed=0, options={"state_ids": np.arange(one.num_envs)}) for sim in (two, one))
    for _ in range(steps):
        yield changed(wanted, symmetry), shown
        actions = expert.act(started)
        started = torch.zeros_like(started)
        wanted, shown = one.step(actions).obs, two.step(signed(actions, symmetry.action)).obs
    one.close()
    two.close()


def colored(pictures: torch.Tensor) -> torch.Tensor:
    """Where things are: one channel is strong, and the others are alike; of the orange gripper they are not."""
    low, middle, high = pictures.sort(dim=3).values.unbind(3)
    return (high - middle > 60) & (middle - low < 50)


def test_in_the_mirror_the_tabletop_is_the_same() -> None:
    """Two starts of each family under the expert's actions. Things that are touched, from step 12 on, roll as rounding
    has it; the hand does not."""
    (mirror,) = tabletop().symmetries["mirror"]
    for step, (wanted, shown) in enumerate(episodes(mirrored, mirror, 30)):
        assert torch.equal(wanted["instruction"], shown["instruction"])
        assert torch.allclose(wanted["state"], shown["state"], atol=1e-6 if step < 12 else 5e-3)
        if step < 12:
            assert torch.allclose(wanted["things"], shown["things"], atol=1e-4)
        for camera in CAMERAS:
            apart = (wanted[f"image_{camera}"].int() - shown[f"image_{camera}"].int()).abs()
            assert apart.float().mean() < 0.1, camera


POSE = [0, 3, 5, 7, 12]
"""Columns of start states whose sign changes: yaw, roll and roll of the joints, and y and the quaternion's z of what
comes next. The fingers, which start alike, are in no plan."""


@pytest.mark.parametrize(
    ("name", "odd"),
    [
        ("peg-insert", POSE),
        ("reach", POSE),
        # block and pedestal; block, goal and obstacle
        ("pick-place", [*POSE, 14]),
        ("push", [*POSE, 14, 19, 21]),
    ],
)
def test_in_the_mirror_the_arms_tasks_are_the_same(name: str, odd: list[int]) -> None:
    """Whole episodes under the expert's actions, ends included."""

    def make() -> Any:
        return robotrl.make_sim(f"mujoco/{name}", num_envs=16, seed=0)

    def plans(found: np.ndarray) -> np.ndarray:
        out = found.copy()
        out[:, odd] *= -1
        return out

    (mirror,) = make().symmetries["mirror"]
    assert mirror.action.signs[:4] == (1.0, -1.0, 1.0, -1.0)
    changes = torch.tensor(mirror.numbers["state"].signs) < 0
    for wanted, shown in episodes(plans, mirror, 60, make):
        assert torch.allclose(wanted["state"], shown["state"], rtol=0, atol=1e-6)
        assert (shown["state"][:, changes].abs().amax(0) > 1e-3).sum() >= 5, "hardly anything changes its sign"


def test_cameras_aside_take_the_mirror_of_an_arms_task_away() -> None:
    assert set(robotrl.make_sim("mujoco/push", num_envs=1, seed=0, image=CAMERAS).symmetries) == {"mirror"}
    assert not robotrl.make_sim("mujoco/push", num_envs=1, seed=0, image="flat_side").symmetries


def test_with_other_colours_the_tabletop_is_the_same_but_for_shades() -> None:
    colors = tabletop().symmetries["colours"]
    assert len(colors) == 5
    (later,) = [one for one in colors if one.pictures["image_flat_top"].channels == (2, 0, 1)]
    for wanted, shown in episodes(recolored, later, 12):
        assert torch.equal(wanted["instruction"], shown["instruction"])
        for key in ("state", "things"):
            assert torch.allclose(wanted[key], shown[key], atol=1e-4), key
        for camera in CAMERAS:
            old, new = wanted[f"image_{camera}"].float(), shown[f"image_{camera}"].float()
            things = colored(old) & colored(new)
            assert things.sum() > 500
            assert (old.argmax(3) == new.argmax(3))[things].float().mean() > 0.99, camera


def test_a_camera_that_stands_aside_takes_the_mirror_away() -> None:
    assert set(tabletop(image="flat_near").symmetries) == {"mirror", "colours"}
    assert set(tabletop(image=("flat_front", "flat_side")).symmetries) == {"colours"}
    assert set(tabletop(image="top").symmetries) == {"colours"}


@pytest.mark.parametrize("kind", KINDS)
def test_each_change_of_the_tabletop_is_undone_by_another(kind: str) -> None:
    sim = tabletop()
    assert isinstance(sim, HasSymmetries)
    obs = sim.reset(seed=3)
    found = sim.symmetries[kind]
    for one in found:
        assert {*one.numbers, *one.pictures, *one.words} == set(sim.observation_spec)
        there = changed(obs, one)
        assert any(all(torch.equal(changed(there, back)[key], obs[key]) for key in obs) for back in found)


# cloning


def demonstrated(sentences: list[str], each: int) -> tuple[Any, dict[str, torch.Tensor], torch.Tensor]:
    """A sim, and rows as of demonstrations: `each` of each sentence."""
    sim = tabletop(image="flat_front")
    obs = {key: x.clone() for key, x in sim.reset(seed=1).items() if key != "things"}
    rows = torch.arange(len(sentences)).repeat_interleave(each)
    obs = {key: x[rows % sim.num_envs] for key, x in obs.items()}
    obs["instruction"] = torch.from_numpy(np.stack([encode(text) for text in sentences]))[rows]
    chunk = torch.rand(len(rows), 2, 5, generator=torch.Generator().manual_seed(0)) * 2 - 1
    return sim, obs, chunk


def test_rows_are_changed_into_what_is_said_elsewhere_and_nothing_else() -> None:
    """In the mirror the first two become each other, the third stays what it is, and the last would be new."""
    sentences = ["push the red can left", "push the red can right", "lift the red can", "push the blue can left"]
    sim, obs, chunk = demonstrated(sentences, 400)
    symmetric = Symmetric(changes_of(("mirror",), sim), obs, sim.observation_spec)
    parts = ("obs", "privileged")
    rows = {"chunk": chunk.clone(), **{f"{part}/{key}": x.clone() for key, x in obs.items() for part in parts}}
    symmetric.change(rows, torch.arange(len(chunk)), torch.Generator().manual_seed(0))
    assert torch.equal(torch.unique(rows["obs/instruction"], dim=0), torch.unique(obs["instruction"], dim=0))
    (mirror,) = sim.symmetries["mirror"]
    flipped = (rows["chunk"] == signed(chunk, mirror.action)).all(dim=2).all(dim=1)
    kept = (rows["chunk"] == chunk).all(dim=2).all(dim=1)
    assert (flipped ^ kept).all()
    wanted = changed(obs, mirror)
    for part in parts:
        for key, x in obs.items():
            assert torch.equal(rows[f"{part}/{key}"][flipped], wanted[key][flipped])
            assert torch.equal(rows[f"{part}/{key}"][kept], x[kept])
    # a fair coin: 600 of 1,200 and six deviations of 17 each way
    assert 496 <= int(flipped[:1200].sum()) <= 704 and not flipped[1200:].any()


def test_colours_that_nobody_names_are_exchanged_around_the_one_that_is_named() -> None:
    sim, obs, chunk = demonstrated(["lift the red can"], 600)
    symmetric = Symmetric(changes_of(("colours",), sim), obs, sim.observation_spec)
    rows = {"chunk": chunk.clone(), **{f"obs/{key}": x.clone() for key, x in obs.items()}}
    symmetric.change(rows, torch.arange(len(chunk)), torch.Generator().manual_seed(0))
    assert torch.equal(rows["obs/instruction"], obs["instruction"]) and torch.equal(rows["chunk"], chunk)
    old, new = obs["image_flat_front"], rows["obs/image_flat_front"]
    assert torch.equal(new[..., 0], old[..., 0])
    other = (new != old).flatten(1).any(dim=1)
    assert torch.equal(new[other], old[other][..., [0, 2, 1]]) and 226 <= int(other.sum()) <= 374


def test_all_that_is_allowed_is_drawn_alike() -> None:
    things = [f"{color} can" for color in ("red", "green", "blue")]
    sentences = [f"push the {thing} {way}" for thing in things for way in DIRECTIONS[:2]]
    sim, obs, chunk = demonstrated(sentences, 600)
    assert len(changes_of(KINDS, sim)) == 12
    symmetric = Symmetric(changes_of(KINDS, sim), obs, sim.observation_spec)
    rows = {"chunk": chunk, "obs/instruction": obs["instruction"].clone()}
    symmetric.change(rows, torch.arange(len(chunk)), torch.Generator().manual_seed(0))
    of_first = rows["obs/instruction"][:600]
    for text in sentences:
        count = int((of_first == torch.from_numpy(encode(text))).all(dim=1).sum())
        assert 60 <= count <= 140, text


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 2**31))
def test_what_is_drawn_is_a_function_of_the_generator(seed: int) -> None:
    sim, obs, chunk = demonstrated(["lift the red can", "lift the blue can"], 50)
    symmetric = Symmetric(changes_of(KINDS, sim), obs, sim.observation_spec)
    found = []
    for _ in range(2):
        rows = {"chunk": chunk.clone(), **{f"obs/{key}": x.clone() for key, x in obs.items()}}
        symmetric.change(rows, torch.arange(len(chunk)), torch.Generator().manual_seed(seed))
        found.append(rows)
    assert same(*found)


def test_what_the_sim_does_not_declare_is_refused(tmp_path: Any) -> None:
    with pytest.raises(ConfigError, match=r"algo\.symmetries .*'mirrored'.*mirror"):
        changes_of(("mirrored",), tabletop())
    with pytest.raises(ConfigError, match=r"'mirror'.*colours"):
        changes_of(("mirror",), tabletop(image="flat_side"))
    walks = write_walks(tmp_path / "walks")
    with pytest.raises(CapabilityError, match=r"lacks HasSymmetries: algo\.symmetries is \('mirror',\), expected \(\)"):
        BcCfg(symmetries=("mirror",)).build(setup(None, GAUSSIAN, walks))
