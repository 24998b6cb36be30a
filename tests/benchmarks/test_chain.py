"""The bench of the chain methods: its baseline does the same as ours, and its figures say what was measured."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from benchmarks.chain.bench import (
    METHODS,
    Measured,
    Setting,
    Shares,
    figures_of,
    make_baseline,
    make_learner,
    measure,
)
from benchmarks.kit.figures import Paired
from robotrl.learners.on_policy import epoch_order
from robotrl.policies.diffusion import DiffusionCfg
from robotrl.policies.flow import FlowCfg

SMALL = {
    "reinflow": FlowCfg(hidden=(16, 16)),
    "dppo": DiffusionCfg(hidden=(16, 16), denoising_steps=5),
}


def small(name):
    method = METHODS[name]
    cfg = replace(method.cfg, num_steps=16, minibatch=8, epochs=2, critic_hidden=(16,))
    return method._replace(cfg=cfg, policy=SMALL[name])


@pytest.mark.parametrize("name", list(METHODS))
def test_the_baselines_update_ends_at_the_same_weights(name):
    method = small(name)
    learner = make_learner(method, "eager", num_envs=4)
    baseline = make_baseline(method, learner)
    batch, _ = learner.collect()
    generator = torch.Generator()
    generator.set_state(learner._generator.get_state())
    learner.update(batch)
    baseline.update(batch, epoch_order(len(batch.advantage), 8, 2, generator, keep_all=False))
    start = make_learner(method, "eager", num_envs=4)
    for ours, plain, before in zip(
        [*learner.loss.actor.parameters(), *learner.loss.critic.parameters()],
        [*baseline.actor.parameters(), *baseline.critic.parameters()],
        [*start.loss.actor.parameters(), *start.loss.critic.parameters()],
        strict=True,
    ):
        assert torch.allclose(ours, plain, atol=1e-5)
        assert ours.dim() == 1 or (ours - before).abs().max() > 1e-4


def test_the_figures_have_what_was_measured():
    measured = measure(small("dppo"), quick=True, num_envs=4, engine="eager")
    figures = figures_of("dppo", measured)
    figure = figures["updates_per_s_dppo"]
    assert figure.value == measured.rates.spread(Setting(False, 1).route).median
    assert figure.peer == figures["updates_per_s_bf16_dppo"].peer == "eager torch, 1 thread"
    assert figures["updates_per_s_bf16_dppo"].value == measured.rates.spread(Setting(True, 1).route).median
    assert 0 < figures["simulator_share_dppo"].value < 1
    # 16 decisions (more where an episode ended), each asked 5 times for acting and 5 times in each epoch
    assert figures["network_evaluations_dppo"].value >= (16 + 2 * 16) * 5


def test_each_counts_at_its_better_number_of_threads():
    rates = {
        "robotrl, 1 thread": (2.0,),
        "robotrl, 2 threads": (3.0,),
        "robotrl in bfloat16, 1 thread": (6.0,),
        "robotrl in bfloat16, 2 threads": (5.0,),
        "eager torch, 1 thread": (1.0,),
        "eager torch, 2 threads": (1.5,),
    }
    measured = Measured(Paired(rates), Shares(0.5, 10), 1.0)
    figures = figures_of("dppo", measured)
    assert (figures["updates_per_s_dppo"].value, figures["updates_per_s_dppo"].ratio) == (3.0, 2.0)
    assert (figures["updates_per_s_bf16_dppo"].value, figures["updates_per_s_bf16_dppo"].ratio) == (6.0, 4.0)
    assert figures["updates_per_s_dppo"].peer == "eager torch, 2 threads"
