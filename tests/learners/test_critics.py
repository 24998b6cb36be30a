"""Chunk critics: their target by hand, what they are trained and judged on, and their file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import tests.kits.learner_kit as kit
import tests.kits.off_policy_kit as off
from robotrl.errors import ConfigError, DataError
from robotrl.learners.critics.chunk_critic import CriticSizes, chunk_critic_loss, reduced
from robotrl.learners.critics.stored import critic_tree, matter_of, start_from, stored_critic, with_critic
from robotrl.policies.networks.executed import ExecutedChunk
from robotrl.policies.q import QEnsemble
from robotrl.replay.buffer import Replay, StepRecord
from robotrl.run.critic_checkpoint import write_critic
from robotrl.transforms import Affine, Clip, TransformGroup
from tests.kits.refusals import raises_naming

SIZES = CriticSizes.of(off.PA_RL)


class Constant(torch.nn.Module):
    """Critics whose values do not depend on anything."""

    def __init__(self, *values: float) -> None:
        super().__init__()
        self.values = torch.nn.Parameter(torch.tensor(values))

    def forward(self, ctx: Tensor, chunk: Tensor) -> Tensor:
        return self.values[:, None].expand(-1, len(ctx))


def test_the_target_counts_env_steps_and_goes_on_beyond_a_time_limit() -> None:
    """Chunks of two, gamma 0.9, rewards 1, 2 and 4, of which the second terminates and the third is cut."""
    replay = Replay.create(None, kit.SPECS, kit.ACTION, streams=1, capacity=8)
    for reward, terminated, truncated in ((1.0, False, False), (2.0, True, False), (4.0, False, True)):
        ended = torch.tensor([0]) if terminated or truncated else torch.zeros(0, dtype=torch.int64)
        flags = torch.tensor([terminated]), torch.tensor([truncated])
        obs, final = {"walk": torch.zeros(1, 2)}, {"walk": torch.zeros(len(ended), 2)}
        replay.add(StepRecord(obs, torch.zeros(1, 1), torch.tensor([reward]), *flags, final, ended))
    drawn = replay.view(replay.indices(2), 2, 0.9)
    rows = {"reward": drawn.reward, "discount": drawn.discount, "executed": drawn.chunk}
    critic: Any = Constant(0.0, 0.0)
    ctx = torch.zeros(3, 2)
    loss, info = chunk_critic_loss(critic, rows, ctx, lambda: torch.full((3,), 10.0))
    wanted = [1 + 0.9 * 2, 2.0, 4 + 0.9 * 10]
    assert info["target"].item() == pytest.approx(sum(wanted) / 3)
    assert loss.item() == pytest.approx(sum(y**2 for y in wanted) / 3, rel=1e-6)
    average = {"values": torch.tensor([7.0, 3.0])}
    assert reduced(critic, "min", average)(ctx, drawn.chunk).tolist() == [3.0] * 3
    assert reduced(critic, "mean", average)(ctx, drawn.chunk).tolist() == [5.0] * 3


def test_chunks_are_valued_as_they_are_executed() -> None:
    """A policy whose 1 is 0.5 of the sim's, 0.1 aside: its bounds are -2.75 and 2.25."""
    outputs = (Affine("action", (0.4,), (0.1,)), Clip("action", kit.ACTION.low, kit.ACTION.high))
    policy = kit.FLOW.build(kit.SPECS, kit.ACTION, TransformGroup(kit.TRANSFORMS.inputs, outputs))
    chunk = torch.tensor([[[3.0, 9.0], [-3.0, 9.0], [1.0, 9.0]]])
    executed = ExecutedChunk(policy)
    assert executed(chunk).flatten().tolist() == pytest.approx([2.25, -2.75])
    assert executed.clip(chunk)[0].tolist() == [
        pytest.approx([2.25, 9.0]),
        pytest.approx([-2.75, 9.0]),
        pytest.approx([1.0, 9.0]),
    ]


# the file


def make_critic(policy: Any, seed: int = 0) -> QEnsemble:
    torch.manual_seed(seed)
    return QEnsemble(
        policy.context_width, policy.horizon, 1, SIZES.num_critics, SIZES.critic_hidden, True, SIZES.critic_activation
    )


def saved(path: Path, policy: Any) -> QEnsemble:
    critic = make_critic(policy)
    tree = critic_tree(matter_of(policy, SIZES, 0.9), critic.state_dict(), "min", {"critic/heldout_auc": 0.8})
    write_critic(path, tree, 3)
    return critic


def test_a_critic_is_read_as_it_was_written(tmp_path: Path) -> None:
    policy = kit.flow()
    critic = saved(tmp_path, policy)
    again = make_critic(policy, 1)
    start_from(str(tmp_path), again, matter_of(policy, SIZES, 0.9))
    assert all(torch.equal(a, b) for a, b in zip(critic.parameters(), again.parameters(), strict=True))
    found = stored_critic(tmp_path / "critic")
    assert (found.sizes, found.reduction, found.quality) == (SIZES, "min", {"critic/heldout_auc": 0.8})


@torch.no_grad()
def test_a_policy_with_a_critic_executes_its_best_sample(tmp_path: Path) -> None:
    policy = kit.flow()
    critic = saved(tmp_path, policy)
    chooser = with_critic(policy, tmp_path, candidates=3)
    obs = {"walk": torch.randn(5, 2, generator=torch.Generator().manual_seed(0))}
    noise = torch.randn(5, 6, 1, generator=torch.Generator().manual_seed(1))
    ctx = policy.encode(obs)
    each = torch.stack([policy.decode(ctx, noise[:, 2 * k : 2 * k + 2]).clamp(-1, 1) for k in range(3)], 1)
    values = torch.stack([critic(ctx, each[:, k]).amin(0) for k in range(3)], 1)
    expected = each[torch.arange(5), values.argmax(1)]
    assert torch.allclose(chooser.deploy(obs, noise).normalized_action, expected, atol=1e-6)
    assert torch.allclose(chooser.propose(obs, noise).logits, values, atol=1e-6)


def test_a_critic_of_something_else_is_refused_by_name(tmp_path: Path) -> None:
    policy = kit.flow()
    policy.control_dt_s = 0.1
    saved(tmp_path, policy)
    matter, path = matter_of(policy, SIZES, 0.9), str(tmp_path)
    critic = make_critic(policy)

    def refused(**changes: Any) -> str:
        with pytest.raises(ConfigError) as caught:
            start_from(path, critic, matter._replace(**changes))
        assert "\n" not in str(caught.value)
        return str(caught.value)

    assert "it reads the observations walk: expected joints" in refused(observations={"joints": {}})
    action = replace(kit.ACTION, names=("step_y_w",))
    assert "the action has names ('step_x_w',): expected ('step_y_w',)" in refused(action=action.to_json())
    assert "its actions are 0.1 s apart: expected 0.05 s" in refused(control_dt_s=0.05)
    assert "another policy: horizon is 2: expected 4" in refused(horizon=4)
    assert "normalized by other statistics" in refused(inputs=[])
    assert "algo.gamma is 0.99: expected 0.9" in refused(gamma=0.99)
    sizes = {**matter.sizes, "num_critics": 2}
    assert "algo.num_critics is 2: expected 4, as the critic" in refused(sizes=sizes)
    with raises_naming(DataError, str(tmp_path / "none"), "pa-rl"):
        stored_critic(tmp_path / "none")
    (tmp_path / "empty").mkdir()
    with raises_naming(DataError, str(tmp_path / "empty"), "pa-rl"):
        stored_critic(tmp_path / "empty")
    weights = next((tmp_path / "critic").glob("*.safetensors"))
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    with pytest.raises(DataError, match="altered"):
        stored_critic(tmp_path)


def test_frames_held_out_are_those_of_whole_episodes(tmp_path: Path) -> None:
    data, demos = (off.write_random_walks(tmp_path / name, episodes=n) for name, n in (("logs", 40), ("demos", 5)))
    learner = replace(off.PA_RL, demos=str(demos), held_out=0.25).build(off.setup(None, data, kit.flow()))
    logs = learner._logs
    assert len(logs.held_out) == 45 and not logs.held_out[40:].any()
    assert abs(int(logs.held_out.sum()) - 10) <= 1
    learned, held = logs.frames(False), logs.frames(True)
    assert sorted([*learned.tolist(), *held.tolist()]) == list(range(len(logs.replay)))
    episode = np.searchsorted(logs.offsets, held.numpy(), side="right") - 1
    assert set(episode) == set(np.flatnonzero(logs.held_out))
    # chunks of an episode that is held out are never sampled for the critics
    rows, seen = learner._critic_rows(20)["obs/walk"], logs.replay.view(learned, 1, 1.0).obs["walk"]
    assert all(bool((seen == row).all(1).any()) for row in rows[:100])


def test_rewards_of_outcomes_alone(tmp_path: Path) -> None:
    data = off.write_random_walks(tmp_path / "logs", episodes=30)
    logs = replace(off.PA_RL, rewards="success").build(off.setup(None, data, kit.flow()))._logs
    rewards = logs.replay.view(logs.replay.indices(), 1, 1.0).reward.numpy()
    assert rewards.sum() == logs.success.sum() > 0
    assert (rewards[logs.offsets[1:] - 1] == logs.success).all()
    with pytest.raises(ConfigError, match="has the reward 0 in all"):
        off.PA_RL.build(off.setup(None, kit.write_walks(tmp_path / "walks"), kit.flow()))
