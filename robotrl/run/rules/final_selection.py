"""Final selection at the end of a run among checkpoints whose success intervals overlap."""

from __future__ import annotations

from typing import Any

from robotrl.config import TrainCfg
from robotrl.fn.choice import newest_best, undecided
from robotrl.rollout.evaluate import evaluate
from robotrl.run.directory import Run
from robotrl.run.policy_checkpoint import load_policy
from robotrl.spec import HasStateIds, VecSim


def reevaluate_best(cfg: TrainCfg[Any, Any], run: Run, sim: VecSim | None) -> dict[int, float]:
    """Choose the best checkpoint of a finished run on starts of split val that no evaluation used.

    Kept checkpoints whose 95 % success interval overlaps that of the best one are evaluated on
    `evaluation.second_look` further starts each; the newest of those with the highest rate becomes the run's best. The
    choice depends only on the checkpoints, so a run killed before it makes the same choice after a resume.

    Args:
        cfg: the run's config.
        run: the run, open for writing.
        sim: the evaluation sim; None for a run without evaluations.

    Returns:
        Step to success rate on the further starts; empty if there was nothing to decide.
    """
    scores = run.scores()
    if not cfg.evaluation.second_look or not scores or not isinstance(sim, HasStateIds):
        return {}
    steps = undecided(scores, cfg.evaluation.episodes)
    if len(steps) < 2:
        return {}
    first = cfg.evaluation.episodes
    ids = sim.state_ids("val")[first : first + cfg.evaluation.second_look]
    rates: dict[int, float] = {}
    for entry in run.entries():
        if entry.step in steps:
            policy = load_policy(entry.path).to(sim.device)
            rates[entry.step] = evaluate(policy, sim, ids=ids, seed=cfg.seed).rate.value
    run.choose(newest_best(rates), rates, len(ids))
    return rates
