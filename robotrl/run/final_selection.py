"""A second look, at the end of a run, at checkpoints that its evaluations could not tell apart."""

from __future__ import annotations

from typing import Any

from robotrl.config import TrainCfg
from robotrl.fn.choice import newest_best, undecided
from robotrl.rollout.evaluate import evaluate
from robotrl.run.directory import Run
from robotrl.run.policy_checkpoint import load_policy
from robotrl.spec import HasStateIds, VecSim


def look_again(cfg: TrainCfg[Any, Any], run: Run, sim: VecSim) -> dict[int, float]:
    """Choose the best checkpoint of a run that has ended, on starts of split val that came in no evaluation.

    Those that are kept and whose success does not differ from the best one's are run on `evaluation.second_look`
    further starts each; the newest of those that do best there is the run's best from now on. The choice follows from
    the checkpoints alone, so that a run that was killed before it and is taken up comes to the same.

    Args:
        cfg: of the run.
        run: open for writing.
        sim: of evaluations.

    Returns:
        Step to success on the further starts; empty where there was nothing to decide.
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
