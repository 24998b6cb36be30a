"""The tabletop beyond what every adapter must do: what is said, where things stand, when it is done, who can do it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import robotrl
from robotrl.errors import ConfigError
from robotrl.sims.mujoco.tabletop import goals, layout
from robotrl.sims.mujoco.tabletop.language import (
    COMPOSITIONS,
    DIRECTIONS,
    FAMILIES,
    MATS,
    MAX_WORDS,
    MOVABLES,
    SENTENCES,
    VOCABULARY,
    Composition,
    InstructionFamily,
    chosen,
    compositions,
    decode,
    encode,
)
from robotrl.spec import HasExpert, HasInstructions, HasPrivileged, HasScenarios

EVERY = tuple(InstructionFamily)
H = layout.HALF_M


# language


def test_there_are_ten_families_and_more() -> None:
    assert len(FAMILIES) == len(EVERY) == len(SENTENCES) == 13
    assert {"push-to", "put-on", "stack", "sort", "point"} <= set(FAMILIES)


@pytest.mark.parametrize("family", EVERY, ids=lambda family: family.title)
def test_held_out_compositions_are_new_combinations_of_known_words(family: InstructionFamily) -> None:
    seen, held_out, every = (set(compositions(family, which)) for which in COMPOSITIONS)
    assert seen | held_out == every and not seen & held_out
    assert held_out and len(held_out) == max(1, round(0.2 * len(every)))

    def words(some: Any) -> set[str]:
        return {word for one in some for way in range(2) for word in one.say(way).split()}

    known = set[str]().union(*(words(compositions(other, "seen")) for other in EVERY))
    assert words(held_out) <= known
    # each composition is said in sentences of its own
    sentences = [one.say(way) for one in every for way in range(2)]
    assert len(set(sentences)) == len(sentences)


def test_no_sentence_has_two_meanings() -> None:
    grounding_keys: dict[str, Composition] = {}
    for family in EVERY:
        for one in compositions(family):
            for way in range(2):
                assert grounding_keys.setdefault(one.say(way), one) == one


@settings(max_examples=50, deadline=None)
@given(st.sampled_from([one for family in EVERY for one in compositions(family)]), st.integers(0, 1))
def test_words_and_their_numbers(one: Composition, way: int) -> None:
    text = one.say(way)
    numbers = encode(text.upper() + " ")
    assert numbers.shape == (MAX_WORDS,) and numbers.max() < len(VOCABULARY)
    assert decode(numbers) == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("push the red blok left", "word 'blok' is unknown: did you mean 'block'"),
        ("", "has 0 words: expected 1 to"),
        ("put " * 40, "has 40 words: expected 1 to"),
    ],
)
def test_what_cannot_be_said(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        encode(text)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"families": ["stak"]}, "family 'stak' is unknown: did you mean 'stack'"),
        ({"families": ["stack", "stack"]}, "expected each name once"),
        ({"families": []}, "one or more"),
        ({"compositions": "heldout"}, "compositions 'heldout' is unknown: did you mean 'held-out'"),
        ({"limit_s": 0.1}, "limit_s"),
        ({"families": "point", "things": 0}, "things is 0: expected as many as 'point' needs, a number from 1 to 6"),
        ({"families": "stack", "things": 1}, "things is 1: expected as many as 'stack' needs, a number from 2 to 6"),
        ({"families": "sort", "mats": 1}, "mats is 1: expected as many as 'sort' needs, a number from 2 to 3"),
        ({"families": "put-on", "mats": 0}, "mats is 0: expected as many as 'put-on' needs, a number from 1 to 3"),
        ({"things": 7}, "things is 7: .* from 1 to 6"),
        ({"things": 6, "mats": 3}, "things and mats is 9: expected 8 together at most"),
    ],
)
def test_bad_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        robotrl.make_sim("mujoco/tabletop", num_envs=1, **options)


# starts

_HERE = [f"{name.replace(' ', '_')}_here" for name in (*MOVABLES, *MATS)]


def lay(count: int, which: Any = "all", first: int = 0) -> layout.TabletopStarts:
    return layout.lay(np.arange(first, first + count), layout.deck(EVERY, which))


def test_starts_are_functions_of_their_ids() -> None:
    every, some = lay(64), layout.lay(np.array([40, 7]), layout.deck(EVERY, "all"))
    for a, b in zip(every, some, strict=True):
        assert np.array_equal(a[[40, 7]], b)


def test_three_things_and_two_mats_stand_apart_and_what_is_named_is_there() -> None:
    found = lay(1300)
    family, a, b, mat, _, _ = found.instruction_ids.T
    every = np.arange(len(family))
    assert (found.here.sum(axis=1) == 3).all() and (found.mats_here.sum(axis=1) == 2).all()
    assert found.here[every, a].all()
    assert found.here[every[b >= 0], b[b >= 0]].all()
    assert found.mats_here[every[mat >= 0], mat[mat >= 0]].all()
    sorts = family == InstructionFamily.SORT
    for thing in (a, b):
        assert found.mats_here[every[sorts], thing[sorts] % 3].all()
    pos = np.where(found.here[..., None], found.pos, np.nan)
    apart = np.linalg.norm(pos[:, :, None] - pos[:, None], axis=-1)[:, ~np.eye(6, dtype=bool)]
    assert np.nanmin(apart) > 2 * np.sqrt(2) * H
    # each thing, each mat and each direction comes up
    assert set(a.tolist()) == set(range(6)) and set(mat[mat >= 0].tolist()) == {0, 1, 2}
    assert set(found.instruction_ids[:, 4].tolist()) == {-1, *range(len(DIRECTIONS))}


@pytest.mark.parametrize(("things", "mats"), [(1, 0), (2, 0), (2, 3), (6, 2)])
def test_the_table_is_as_full_as_asked_for(things: int, mats: int) -> None:
    families = (InstructionFamily.POINT, InstructionFamily.LIFT, InstructionFamily.PUSH)
    found = layout.lay(np.arange(300), layout.deck(families, "all", things, mats))
    every = np.arange(300)
    assert (found.here.sum(axis=1) == things).all() and (found.mats_here.sum(axis=1) == mats).all()
    assert found.here[every, found.instruction_ids[:, 1]].all()
    pos = np.where(found.here[..., None], found.pos, np.nan)
    assert (found.pos[~found.here][:, 0] == layout.AWAY_M).all()
    if things > 1:
        apart = np.linalg.norm(pos[:, :, None] - pos[:, None], axis=-1)[:, ~np.eye(6, dtype=bool)]
        assert np.nanmin(apart) > 2 * np.sqrt(2) * H
    # what is said of a start does not depend on how full its table is
    assert np.array_equal(found.instruction_ids, layout.lay(every, layout.deck(families, "all")).instruction_ids)


def test_a_sim_shows_as_many_things_as_asked_for() -> None:
    sim = robotrl.make_sim("mujoco/tabletop", num_envs=3, seed=0, families="point,push", things=2, mats=0)
    things = sim.reset(seed=0)["things"]
    here = [things[:, sim.observation_spec["things"].names.index(name)] for name in _HERE]
    assert torch.stack(here[:6]).sum(0).tolist() == [2.0] * 3 and torch.stack(here[6:]).sum() == 0
    sim.close()


@pytest.mark.parametrize("which", ["seen", "held-out"])
def test_starts_draw_from_the_wanted_compositions(which: Any) -> None:
    found = lay(650, which)
    drawn = {Composition(InstructionFamily(row[0]), *row[1:5]) for row in found.instruction_ids.tolist()}
    allowed = {one for family in EVERY for one in compositions(family, which)}
    assert drawn <= allowed and {one.family for one in drawn} == set(EVERY)
    assert [InstructionFamily(f) for f in found.instruction_ids[:13, 0]] == list(EVERY)


def test_pushes_have_a_free_way() -> None:
    """Nearly always: the last of some layouts is taken as it is."""
    found = lay(2600)
    blocked = ~layout.is_free(found, np.arange(2600))
    assert blocked.mean() < 0.01


# goals


def now(one: Composition, **changes: Any) -> goals.SceneState:
    """Red block at (0.4, 0), green block at (0.5, 0.2), red mat at (0.4, 0.1), the tip far above; then changes."""
    pos = np.zeros((1, 6, 3))
    pos[0, :, :2] = [(0.4, 0.0), (0.5, 0.2), (2, 0), (2, 1), (2, 2), (2, 3)]
    pos[..., 2] = H
    start = pos[..., :2].copy()
    plain: dict[str, Any] = {
        "instruction_ids": np.array([[*one, 0]]),
        "pos": pos,
        "speed": np.zeros((1, 6)),
        "yaw": np.zeros((1, 6)),
        "mats": np.array([[(0.4, 0.1), (0.6, -0.1), (2.0, 0.0)]]),
        "tip": np.array([[0.5, 0.0, 0.2]]),
        "tip_speed": np.zeros(1),
        "start": start,
        "start_yaw": np.zeros((1, 6)),
        "lifted": np.zeros(1, bool),
    }
    things = {key: changes.pop(key) for key in ("a", "b") if key in changes}
    for key, value in things.items():
        plain["pos"][0, "ab".index(key)] = value
    for key, value in changes.items():
        plain[key] = np.array([value])
    return goals.SceneState(**plain)


F = InstructionFamily
TABLE: list[tuple[Composition, dict[str, Any], bool]] = [
    (Composition(F.POINT, 0), {"tip": (0.41, 0.0, 0.06)}, True),
    (Composition(F.POINT, 0), {"tip": (0.42, 0.0, 0.06)}, False),  # aside
    (Composition(F.POINT, 0), {"tip": (0.4, 0.0, 0.10)}, False),  # too high
    (Composition(F.POINT, 0), {"tip": (0.4, 0.0, 0.06), "tip_speed": 0.2}, False),
    (Composition(F.POINT, 0), {"tip": (0.42, 0.0, 0.06), "a": (0.42, 0.0, H)}, False),  # moved
    (Composition(F.POINT, 1), {"tip": (0.4, 0.0, 0.06)}, False),  # another one
    (Composition(F.LIFT, 0), {"a": (0.4, 0.0, 0.09)}, True),
    (Composition(F.LIFT, 0), {"a": (0.4, 0.0, 0.07)}, False),
    (Composition(F.LIFT, 0), {"b": (0.5, 0.2, 0.09)}, False),
    (Composition(F.PUSH_TO, 0, mat=0), {"a": (0.4, 0.09, H)}, True),
    (Composition(F.PUSH_TO, 0, mat=0), {"a": (0.4, 0.09, H), "lifted": True}, False),
    (Composition(F.PUSH_TO, 0, mat=1), {"a": (0.4, 0.09, H)}, False),
    (Composition(F.PUSH, 0, direction=0), {"a": (0.41, 0.08, H)}, True),
    (Composition(F.PUSH, 0, direction=1), {"a": (0.41, 0.08, H)}, False),
    (Composition(F.PUSH, 0, direction=1), {"a": (0.41, -0.08, H)}, True),
    (Composition(F.PUSH, 0, direction=2), {"a": (0.48, 0.01, H)}, True),
    (Composition(F.PUSH, 0, direction=3), {"a": (0.32, 0.01, H)}, True),
    (Composition(F.PUSH, 0, direction=0), {"a": (0.45, 0.08, H)}, False),  # across
    (Composition(F.PUSH, 0, direction=0), {"a": (0.4, 0.07, H)}, False),  # not far enough
    (Composition(F.PUT_ON, 0, mat=0), {"a": (0.4, 0.1, H), "lifted": True}, True),
    (Composition(F.PUT_ON, 0, mat=0), {"a": (0.4, 0.1, H), "tip": (0.4, 0.1, 0.03)}, False),  # still held
    (Composition(F.PUT_ON, 0, mat=0), {"a": (0.4, 0.1, 0.06)}, False),  # in the air
    (Composition(F.PUT_ON, 0, mat=0), {"a": (0.4, 0.1, H), "speed": (0.2, 0, 0, 0, 0, 0)}, False),
    (Composition(F.STACK, 0, 1), {"a": (0.51, 0.2, 3 * H)}, True),
    (Composition(F.STACK, 0, 1), {"a": (0.52, 0.2, 3 * H)}, False),
    (Composition(F.STACK, 1, 0), {"a": (0.51, 0.2, 3 * H)}, False),  # the wrong way round
    (Composition(F.NEXT_TO, 0, 1), {"a": (0.44, 0.2, H)}, True),
    (Composition(F.NEXT_TO, 0, 1), {"a": (0.40, 0.2, H)}, False),
    (Composition(F.BESIDE, 0, 1, direction=0), {"a": (0.5, 0.26, H)}, True),
    (Composition(F.BESIDE, 0, 1, direction=1), {"a": (0.5, 0.26, H)}, False),
    (Composition(F.BESIDE, 0, 1, direction=1), {"a": (0.5, 0.14, H)}, True),
    (Composition(F.BESIDE, 0, 1, direction=2), {"a": (0.56, 0.2, H)}, True),
    (Composition(F.BESIDE, 0, 1, direction=3), {"a": (0.44, 0.2, H)}, True),
    (Composition(F.BESIDE, 0, 1, direction=3), {"a": (0.44, 0.23, H)}, False),
    (Composition(F.GATHER, 0, 1), {"a": (0.459, 0.2, H)}, True),
    (Composition(F.GATHER, 0, 1), {"a": (0.449, 0.2, H)}, False),
    (Composition(F.GATHER, 0, 1), {"a": (0.459, 0.2, H), "lifted": True}, False),
    # corners meet later than sides
    (Composition(F.GATHER, 0, 1), {"a": (0.449, 0.2, H), "yaw": (0.75, 0.75, 0, 0, 0, 0)}, True),
    (Composition(F.SORT, 0, 1), {"a": (0.4, 0.1, H), "b": (0.6, -0.1, H)}, True),
    (Composition(F.SORT, 1, 0), {"a": (0.4, 0.1, H), "b": (0.6, -0.1, H)}, True),
    (Composition(F.SORT, 0, 1), {"a": (0.4, 0.1, H)}, False),
    (Composition(F.SORT, 0, 1), {"b": (0.6, -0.1, H)}, False),
    (Composition(F.CLEAR, 0, mat=0), {"start": [(0.4, 0.1)] * 6, "a": (0.4, 0.17, H)}, True),
    (Composition(F.CLEAR, 0, mat=0), {"start": [(0.4, 0.1)] * 6, "a": (0.4, 0.14, H)}, False),
    (Composition(F.TURN, 0), {"yaw": (0.5, 0, 0, 0, 0, 0)}, True),
    (Composition(F.TURN, 0), {"yaw": (0.2, 0, 0, 0, 0, 0)}, False),
    (Composition(F.TURN, 0), {"yaw": (0.5, 0, 0, 0, 0, 0), "a": (0.5, 0.0, H)}, False),  # carried off
    (Composition(F.CENTRE, 0), {"a": (0.47, 0.01, H)}, True),
    (Composition(F.CENTRE, 0), {"a": (0.43, 0.01, H)}, False),
]


@pytest.mark.parametrize(
    ("one", "changes", "expected"), TABLE, ids=[f"{i}-{c[0].family.title}" for i, c in enumerate(TABLE)]
)
def test_when_an_instruction_is_done(one: Composition, changes: dict[str, Any], expected: bool) -> None:
    assert goals.done(now(one, **changes)).tolist() == [expected]


def test_every_family_has_both_verdicts() -> None:
    for family in EVERY:
        assert {expected for one, _, expected in TABLE if one.family == family} == {True, False}


@pytest.mark.parametrize(("one", "changes", "expected"), [row for row in TABLE if row[2]], ids=str)
def test_distance_has_shrunk_where_it_is_done(one: Composition, changes: dict[str, Any], expected: bool) -> None:
    """All but the tip's part of it, which is the same here and there."""
    before = now(one)
    if "start" in changes:  # on the mat
        before = now(one, start=changes["start"], a=(*changes["start"][0], H))
    after = now(one, **changes)
    rows = np.arange(1)

    def left(state: goals.SceneState) -> float:
        tip = np.linalg.norm(state.tip - state.pos[rows, state.instruction_ids[:, 1]])
        return float(goals.distance(state)[0] - goals.METERS_PER_TIP_M * tip)

    if one.family == InstructionFamily.POINT:
        assert left(after) == left(before) == 0.0
    else:
        assert left(after) < left(before) - 0.01


# the sim


def test_what_it_declares() -> None:
    sim = robotrl.make_sim("mujoco/tabletop", num_envs=3, seed=0, families=["stack", "point"])
    for capability in (HasExpert, HasInstructions, HasPrivileged, HasScenarios):
        assert isinstance(sim, capability)
    assert sim.scenarios == ("stack", "point") and sim.scenario_of(7) == "point"
    sim.queue_states([4, 5, 6])
    obs = sim.reset()
    said = sim.instructions()
    assert [decode(row.numpy()) for row in obs["instruction"]] == said
    assert all(any(said[i].startswith(w.split("{")[0]) for w in SENTENCES[F.STACK]) for i in (0, 2))


def test_things_that_are_not_there_are_not_told_of() -> None:
    sim = robotrl.make_sim("mujoco/tabletop", num_envs=32, seed=0)
    obs = sim.reset(0)
    names = sim.observation_spec["things"].names
    for word in (name.replace(" ", "_") for name in (*MOVABLES, *MATS)):
        columns = [i for i, name in enumerate(names) if name.startswith(word)]
        rows = obs["things"][:, columns]
        here = rows[:, 0] == 1
        assert 0 < here.sum() < 32
        assert (rows[~here] == 0).all() and (rows[here][:, 1:3].abs().sum(dim=1) > 0.3).all()


def test_doing_nothing_and_random_actions_never_succeed() -> None:
    for scale in (0.0, 1.0):
        sim = robotrl.make_sim("mujoco/tabletop", num_envs=52, seed=0, compositions="all", limit_s=3.0)
        sim.reset(0)
        generator = torch.Generator().manual_seed(0)
        found = 0
        for _ in range(60):
            out = sim.step(scale * (2 * torch.rand(52, 5, generator=generator) - 1))
            found += int(out.info["success"].sum())
        assert found <= (0 if scale == 0.0 else 1)


@pytest.mark.parametrize("which", ["seen", "held-out"])
def test_the_expert_does_what_it_is_told(which: str) -> None:
    """Each family, on held-out starts; both compositions that are trained on and those that are not."""
    sim = robotrl.make_sim("mujoco/tabletop", num_envs=52, seed=0, compositions=which)
    ids = list(sim.state_ids("val")[:52])
    sim.queue_states(ids)
    expert = sim.make_expert()
    sim.reset()
    started = torch.ones(52, dtype=torch.bool)
    verdict: dict[int, bool] = {}
    while len(verdict) < 52:
        out = sim.step(expert.act(started))
        started = out.terminated | out.truncated
        for env in torch.nonzero(started)[:, 0].tolist():
            verdict.setdefault(env, bool(out.info["success"][env]))
    lost = [sim.scenario_of(ids[env]) for env, done in verdict.items() if not done]
    assert len(lost) <= 2 and max(map(lost.count, lost), default=0) <= 1


def test_another_instruction_is_shown_and_changes_nothing_else() -> None:
    sims = [robotrl.make_sim("mujoco/tabletop", num_envs=2, seed=0) for _ in range(2)]
    for sim in sims:
        sim.reset(3)
    sims[1].instruct(1, "point at the red can")
    plain, told = (sim.step(torch.zeros(2, 5)) for sim in sims)
    assert decode(told.obs["instruction"][1].numpy()) == "point at the red can"
    assert torch.equal(plain.obs["instruction"][0], told.obs["instruction"][0])
    for key in ("state", "things"):
        assert torch.equal(plain.obs[key], told.obs[key])
    assert sims[0].instructions() == sims[1].instructions()
    with pytest.raises(ConfigError, match="did you mean 'can'"):
        sims[1].instruct(0, "point at the red cann")


def test_lifting_is_remembered_when_a_state_is_restored() -> None:
    """A push that was a lift stays one, also in a sim that was restored in between."""
    sim = robotrl.make_sim("mujoco/tabletop", num_envs=1, seed=0, families=["push-to"])
    sim.reset(1)
    thing = sim.task.things[int(sim.task.instruction_ids[0, 1])]
    thing.pos_w[0, 2] += 0.05
    sim.step(torch.zeros(1, 5))
    assert sim.task.now().lifted.tolist() == [True]
    other = robotrl.make_sim("mujoco/tabletop", num_envs=1, seed=5, families=["push-to"])
    other.reset(8)
    other.set_state(sim.get_state())
    for some in (sim, other):
        for _ in range(20):
            some.step(torch.zeros(1, 5))
        assert some.task.now().lifted.tolist() == [True]
        assert some.task.now().pos[0, int(some.task.instruction_ids[0, 1]), 2] == pytest.approx(H, abs=2e-3)


def test_the_camera_sees_the_named_things() -> None:
    """The picture from above has pixels of each thing's colour where the thing is."""
    sim = robotrl.make_sim("mujoco/tabletop", num_envs=8, seed=0, image="flat_top", image_size=96, families=["push-to"])
    obs = sim.reset(2)
    view = sim.task.views["flat_top"]
    scale = 96 / view.width_m
    seen = 0
    for env in range(8):
        for k in range(len(MOVABLES)):
            x, y = sim.task.pos_w[env, k, :2]
            if x > 1:
                continue
            row, column = round(48 - (x - view.center_w[0]) * scale), round(48 - (y - view.center_w[1]) * scale)
            r, g, b = obs["image_flat_top"][env, row, column].tolist()
            seen += {"red": r > 1.5 * max(g, b), "green": g > 1.3 * max(r, b), "blue": b > 1.3 * max(r, g)}[
                MOVABLES[k].split()[0]
            ]
    assert seen >= 20  # of 24; the arm hides some


def test_families_of_an_option() -> None:
    assert chosen(None) == EVERY
    assert chosen(["sort", "point"]) == (InstructionFamily.SORT, InstructionFamily.POINT)


def test_it_says_what_is_meant() -> None:
    """Where the named thing is, and where it is to end: by hand for a push, a mat, and a thing that stays."""
    sim = robotrl.make_sim("mujoco/tabletop", num_envs=60, seed=0, families="push,push-to,lift", things=3, mats=2)
    obs = sim.reset(seed=0)
    assert sim.grounding_keys == ("meant",) and set(sim.privileged) == {"things", "meant"}
    names = sim.observation_spec["things"].names
    seen = dict.fromkeys(("push", "push-to", "lift"), 0)
    for env, says in enumerate(sim.task.instruction_ids):
        family, a, _, mat, direction, _ = says
        thing = MOVABLES[a].replace(" ", "_")
        own = torch.stack([obs["things"][env, names.index(f"{thing}_pos_{axis}_w")] for axis in "xy"])
        pos, goal = obs["meant"][env].split(2)
        assert torch.allclose(pos, own)
        if family == InstructionFamily.PUSH:
            way = torch.tensor(layout.DIRECTIONS_M[direction], dtype=torch.float32)
            assert torch.allclose(goal - pos, layout.PUSH_M * way, atol=1e-4)
        elif family == InstructionFamily.PUSH_TO:
            flat = MATS[mat].replace(" ", "_")
            there = [obs["things"][env, names.index(f"{flat}_pos_{axis}_w")] for axis in "xy"]
            assert torch.allclose(goal, torch.stack(there), atol=1e-6)
        else:
            assert torch.equal(goal, pos)
        seen[InstructionFamily(family).title] += 1
    assert min(seen.values()) >= 10
