"""Training loop for all algorithms: iterate, log, evaluate, save, and stop on request."""

from __future__ import annotations

import math
import random
import sys
import time
import warnings
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from robotrl import config as configs
from robotrl.cluster.factory import ClusterCollectors
from robotrl.config import SimCfg, TrainCfg, class_named
from robotrl.engine import distributed
from robotrl.engine.autocast import warn_if_slow
from robotrl.engine.distributed import DistributedContext
from robotrl.errors import CapabilityError, ConfigError, DataError, out_of_range, short
from robotrl.learners.collection.collectors import OwnSim
from robotrl.learners.learner import Learner, Setup
from robotrl.memory_estimate.check import announce
from robotrl.peft.lora import adapt, adaptation_of, merged
from robotrl.policies.networks.activation_checkpointing import recompute
from robotrl.registry import build_sim
from robotrl.rewards.endpoint.shares import share_of_budgets
from robotrl.rewards.kind import RewardKindCheck
from robotrl.rewards.preferences.preferences import PreferencesCfg
from robotrl.rewards.relabel import going_on_after_success, with_rewards
from robotrl.rewards.source import RewardSetup
from robotrl.rewards.trust.divergence import DivergenceWatch
from robotrl.rewards.trust.returns import LoggedSim, ReturnsSim, RewardLog
from robotrl.rollout.compatibility import check_actions, check_memory
from robotrl.rollout.curriculum import with_curriculum
from robotrl.rollout.device_wrapper import on_device
from robotrl.rollout.evaluate import EvalResult, evaluate
from robotrl.run import input_digests
from robotrl.run.callbacks import Callback, CallbackList
from robotrl.run.checkpoint import rng_state, set_rng_state, write_checkpoint
from robotrl.run.critic_checkpoint import write_critic
from robotrl.run.directory import Run
from robotrl.run.locking import StopSignals
from robotrl.run.logs import read_scalars
from robotrl.run.policy_checkpoint import BASE, changed, load_policy, policy_from_tree, policy_tree, probe
from robotrl.run.rules.early_stopping import GOOD_ENOUGH, StopRule
from robotrl.run.rules.final_selection import reevaluate_best
from robotrl.run.rules.schedule import EvalBudget, Progress, is_due, is_evaluated
from robotrl.sims.wrapper import declared
from robotrl.spec import HasCamera, HasStateIds, VecSim, shown_dt_s, why_lacking
from robotrl.spec.episode_log import HasEpisodeLog
from robotrl.spec.json_fields import name_values
from robotrl.spec.sim_options import NOT_LOG_ONLY, HasLogOnly
from robotrl.utils.devices import device_of
from robotrl.utils.hardware import check_threads, usable_cores
from robotrl.utils.media import grid, write_gif
from robotrl.utils.progress import track

FRAME_SIZE = (128, 96)
ANSWERS = "answers"
"""Folder of a run with the answers that it paid for."""
FRAME_EVERY, FRAMES = 4, 16
"""Each evaluation renders a frame every `FRAME_EVERY` steps, at most `FRAMES` of them."""


def train(cfg: TrainCfg[Any, Any], run_path: Path, callbacks: Sequence[Callback] = ()) -> Path:
    """Train a new run. With torchrun, the first process writes the run and all processes train together.

    Args:
        cfg: the config; saved in the run before anything is built.
        run_path: the run's directory, absent or empty.
        callbacks: user callbacks, see `robotrl.run.callbacks`.

    Returns:
        The run's directory.

    Raises:
        RobotrlError: a fault of the config, the data or the disk.
        SystemExit: the run was interrupted; it is saved, and `resume` continues it.
    """
    cfg = configs.resolved(cfg)
    configs.check(cfg)
    # before anything is written
    device_of(cfg.device)
    with distributed.joined(cfg.dist_timeout_s) as world:
        _check_learners(cfg, world)
        if world.rank:
            _follow(cfg, None, run_path, world)
            return run_path
        inputs = input_digests.begun(cfg)
        run = Run.create(run_path, configs.to_json(cfg), seed=cfg.seed, command=sys.argv, keep=cfg.keep, inputs=inputs)
        with _discarded_if_empty(run), run:
            announce(cfg)
            _go(cfg, run, _prepare(cfg, None, run.path, world), None, callbacks, world)
    return run_path


def resume(run_path: Path, callbacks: Sequence[Callback] = (), *, accept_changed_inputs: bool = False) -> Path:
    """Resume a run exactly from its newest undamaged checkpoint; the result is as if it had never stopped.

    With several processes only the first one continues exactly; the others begin new episodes.

    Args:
        run_path: the run's directory.
        callbacks: user callbacks, see `robotrl.run.callbacks`.
        accept_changed_inputs: continue although the config or an input of the run has changed.

    Raises:
        DataError: there is no run, all its checkpoints are damaged, or inputs have changed.
    """
    run = Run.open(run_path)
    if not accept_changed_inputs:
        run.refuse_changed(run.altered)
    cfg = config_of(run)
    with distributed.joined(cfg.dist_timeout_s) as world:
        _check_learners(cfg, world)
        run.keep_newest(cfg.keep)
        if world.rank:
            world.any(False)  # until the first process has cleaned the run directory
            checkpoint = run.latest()
            _follow(cfg, None if checkpoint is None else checkpoint.tree, run_path, world)
            return run_path
        checkpoint = run.resume(
            sys.argv, inputs=input_digests.digests_on_resume(cfg), accept_changed_inputs=accept_changed_inputs
        )
        world.any(False)
        state = None if checkpoint is None else checkpoint.tree
        with run:
            _go(cfg, run, _prepare(cfg, state, run_path, world), state, callbacks, world)
    return run_path


def _check_learners(cfg: TrainCfg[Any, Any], world: DistributedContext) -> None:
    """Check that there are as many processes as the cluster of a run has learners.

    Raises:
        ConfigError: there are not.
    """
    learners = cfg.cluster.learners
    if cfg.cluster.name == "none" or learners == world.size:
        return
    if world.size == 1:
        raise ConfigError(
            f"cluster.learners is {learners} and there is one process: expected robotrl train with cluster ray, which"
            " starts them, or torchrun"
        )
    raise ConfigError(
        f"cluster.learners is {learners} beside cluster {cfg.cluster.name!r}, and WORLD_SIZE is {world.size}: expected"
        f" cluster.learners {world.size}, or cluster none"
    )


def config_of(run: Run) -> TrainCfg[Any, Any]:
    """Config of a stored run.

    Raises:
        DataError: the run was not written by `train`.
        ConfigError: its config is from another version, or has invalid values.
    """
    try:
        types = {part: class_named(name) for part, name in run.config["types"].items()}
    except (KeyError, AttributeError, TypeError) as error:
        raise DataError(f"run {run.path} has no config of a training: {short(repr(error))}") from error
    cfg = configs.from_json(run.config, types)
    configs.check(cfg)
    return cfg


class _Prepared(NamedTuple):
    """Learner and evaluation sim of a run; building them checks the whole setup."""

    learner: Learner
    eval_sim: VecSim | None
    """None for a run without evaluations."""
    rewards: RewardLog
    """Means of each reward source, and the sim's own returns, since the last line of the log."""

    def close(self) -> None:
        """Close sims and processes."""
        self.learner.close()
        if self.eval_sim is not None:
            self.eval_sim.close()


def _prepare(
    cfg: TrainCfg[Any, Any], state: dict[str, Any] | None, run_path: Path, world: DistributedContext
) -> _Prepared:
    """Build the learner and the evaluation sim.

    Args:
        cfg: the config.
        state: state of the checkpoint to resume from; None for a new run.
        run_path: the run's directory.
        world: distributed context of the processes.
    """
    rewards = RewardLog()
    learner = _make_learner(cfg, state, run_path, world, rewards)
    try:
        return _Prepared(learner, _make_eval_sim(cfg), rewards)
    except BaseException:
        learner.close()
        raise


def _make_learner(
    cfg: TrainCfg[Any, Any],
    state: dict[str, Any] | None,
    run_path: Path,
    world: DistributedContext,
    rewards: RewardLog | None = None,
) -> Learner:
    torch.set_num_threads(cfg.torch_threads)
    # robotrl uses its own generators; third-party sims and callbacks may use the global ones
    seed = world.seed(cfg.seed)
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    _refuse_shared_preferences(cfg, cfg.cluster.workers if cfg.cluster.on else world.size)
    own = _with_own_budgets(cfg, world.size)
    learner: Learner = own.algo.build(_setup(own, state, run_path, world, rewards))
    if world.size > 1 and learner.world != world:
        raise CapabilityError(
            f"{type(learner).__name__} lacks world: it learns in one process, and WORLD_SIZE is {world.size}"
        )
    if cfg.fsdp and not learner.sharded:
        raise CapabilityError(f"{type(learner).__name__} cannot spread what it learns: expected fsdp False")
    if cfg.cache != "none" and not learner.caches:
        raise CapabilityError(f"{type(learner).__name__} keeps nothing of observations: expected cache none")
    if cfg.lora.rank and adaptation_of(learner.policy) is None:
        raise CapabilityError(
            f"{type(learner).__name__} makes another policy ({type(learner.policy).__name__}) of the one that it starts"
            f" from, and lora.rank is {cfg.lora.rank}: expected 0"
        )
    if cfg.intervention.by != "nobody":
        make: Any = partial(cfg.intervention.build, seed=cfg.seed)
        learner.watch(make)
    if cfg.actor.process and not learner.acts_remotely:
        raise CapabilityError(
            f"{type(learner).__name__} lacks experience, a replay that another process could fill: expected"
            " actor.process False, or an algorithm that learns from a replay online"
        )
    return learner


@contextmanager
def _discarded_if_empty(run: Run) -> Generator[None]:
    """Remove a run that fails before anything was saved or logged, so that its path is free again."""
    try:
        yield
    except BaseException:
        if run.empty:
            run.discard()
        raise


def _follow(cfg: TrainCfg[Any, Any], state: dict[str, Any] | None, run_path: Path, world: DistributedContext) -> None:
    """Training loop of all processes but the first, which logs, evaluates, saves, and decides when to stop."""
    signals = StopSignals()
    signals.install()
    try:
        with closing(_make_learner(cfg, state, run_path, world)) as learner:
            iteration, streak = 0, 0
            if state is not None:
                learner.load(state["learner"])
                iteration, streak = state["iteration"], state["streak"]
            at = Progress(iteration, 0, learner.env_steps)
            while iteration < learner.iterations and streak < GOOD_ENOUGH:
                learner.iterate()
                iteration += 1
                at = Progress(iteration, at.env_steps, learner.env_steps)
                last = world.any(signals.received is not None) or iteration == learner.iterations
                if cfg.fsdp and (last or is_due(cfg, at)):
                    # the first process saves, and needs every process's shard
                    learner.state()
                if last:
                    break
    finally:
        signals.restore()


def _go(
    cfg: TrainCfg[Any, Any],
    run: Run,
    prepared: _Prepared,
    state: dict[str, Any] | None,
    callbacks: Sequence[Callback],
    world: DistributedContext,
) -> None:
    # no caller may hold a reference: sharded tensors must be freed before the processes part
    with closing(prepared):
        _iterate(cfg, run, prepared, state, callbacks, world)


def _iterate(
    cfg: TrainCfg[Any, Any],
    run: Run,
    prepared: _Prepared,
    state: dict[str, Any] | None,
    callbacks: Sequence[Callback],
    world: DistributedContext,
) -> None:
    learner, eval_sim, rewards = prepared
    iteration, streak, before_s, eval_s = 0, 0, 0.0, 0.0
    best: float | None = None
    if state is not None:
        before_s, eval_s = _spent_s(run.path)
        learner.load(state["learner"])
        set_rng_state(state["rng"])
        iteration, streak, best = (state[name] for name in ("iteration", "streak", "best"))
    hooks = CallbackList(run, callbacks)
    print(threads_line(cfg.torch_threads, cfg.update_threads, eval_sim), file=sys.stderr)
    if cfg.algo.memory.bf16:
        warn_if_slow(device_of(cfg.device))
    started, steps_before, learn_s = time.monotonic(), learner.env_steps, 0.0
    run.begin_session(learner.iterations, iteration)
    hooks.on_start()
    # absent in checkpoints of earlier versions
    budget = EvalBudget(cfg.evaluation.max_share, 0 if state is None else state.get("eval_env_steps", 0))
    reward_kind = RewardKindCheck(cfg)
    divergence = DivergenceWatch(cfg, [] if state is None else _logged(run.path))
    at = Progress(iteration, 0, learner.env_steps)
    rule = StopRule(cfg, eval_sim)
    shown = track(
        learner.iterations, f"train {run.path.name}", "iteration", done=iteration, may_end_early=rule.may_stop
    )
    with shown as progress:
        while iteration < learner.iterations and streak < GOOD_ENOUGH:
            began = time.monotonic()
            scalars = learner.iterate() | rewards.take()
            learn_s += time.monotonic() - began
            iteration += 1
            at = Progress(iteration, at.env_steps, learner.env_steps)
            reward_kind.look(scalars)
            scalars |= divergence.look(scalars)
            last = iteration == learner.iterations or run.stop_requested
            # compiling happens once: it is excluded, so that rates are comparable
            compile_s = learner.compile_s
            elapsed = max(time.monotonic() - started - compile_s, 1e-9)
            scalars["env_steps"] = float(learner.env_steps)
            # without evaluations and compiling
            scalars["learn_s"] = before_s + learn_s - compile_s
            if learner.sim_s:
                scalars["sim_share"] = learner.sim_s / max(learn_s - compile_s, 1e-9)
            if compile_s:
                scalars["compile_s"] = compile_s
            if learner.env_steps:
                scalars["env_steps_per_s"] = (learner.env_steps - steps_before) / elapsed
            score = None
            if eval_sim is None:
                score = rollout_score(scalars, cfg.evaluation.score)
                best = score if best is None or (score is not None and score > best) else best
            elif iteration == learner.iterations or (is_evaluated(cfg, at) and budget.allows(learner.env_steps)):
                began = time.monotonic()
                result = _evaluate(cfg, run, learner, eval_sim, iteration)
                eval_s += time.monotonic() - began
                budget.env_steps += int(result.length.sum())
                mean_return = float(result.returns.mean())
                score = result.rate.value if cfg.evaluation.score == "success" else mean_return
                scalars |= {
                    "eval_success": result.rate.value,
                    "eval_low": result.rate.low,
                    "eval_high": result.rate.high,
                    "eval_length": float(result.length.mean()),
                    "eval_return": mean_return,
                }
                _warn_if_unstated(cfg, result)
                hooks.on_evaluation(iteration, result)
                streak = rule.streak(streak, result, best)
                best = score if best is None else max(best, score)
                last = last or streak >= GOOD_ENOUGH
            scalars["eval_s"] = eval_s
            scalars["eval_share"] = eval_s / max(eval_s + scalars["learn_s"], 1e-9)
            run.log(iteration, scalars)
            hooks.on_iteration(iteration, scalars)
            last = last or run.stop_requested
            if world.any(last) and not last:
                run.request_stop("another process was asked to stop")
                last = True
            if last or is_due(cfg, at):
                tree = {
                    "policy": policy_tree(learner.policy),
                    "learner": learner.state(),
                    "rng": rng_state(),
                    "iteration": iteration,
                    "streak": streak,
                    "best": best,
                    "eval_env_steps": budget.env_steps,
                }
                if (critic := learner.critic_tree()) is not None:
                    write_critic(run.path, critic, iteration)
                path = run.save(tree, step=iteration, score=score, kind=type(learner).__name__)
                hooks.on_checkpoint(iteration, path)
            progress.advance(1, note=_note(scalars, best, cfg.evaluation.score))
            if last:
                break
    spent_s = before_s + learn_s + eval_s
    print(f"evaluations took {100 * eval_s / max(spent_s, 1e-9):.0f} % of {spent_s:.0f} s", file=sys.stderr)
    if not run.stop_requested:
        reevaluate_best(cfg, run, eval_sim)
    hooks.on_end()
    if run.exit_code:
        print(f"stopped: {run.path} is saved; go on with: robotrl train --resume {run.path}", file=sys.stderr)
        raise SystemExit(run.exit_code)


def _warn_if_unstated(cfg: TrainCfg[Any, Any], result: EvalResult) -> None:
    """Warn if the run depends on a success rule that nobody stated."""
    if result.rule is None or result.rule.stated:
        return
    by = "stop_at_success" if cfg.stop_at_success is not None else "evaluation.score"
    if by == "stop_at_success" or cfg.evaluation.score == "success":
        warnings.warn(
            f"{by} goes by success, which sim {cfg.sim.name!r} does not state: {result.rule.text} counts; expected its"
            " option success=survival if that is meant, another rule, or evaluation.score return",
            stacklevel=2,
        )


def _spent_s(run_path: Path) -> tuple[float, float]:
    """Time of training and of evaluations of a resumed run before the resume, s."""
    rows = _logged(run_path)
    return (rows[-1].get("learn_s", 0.0), rows[-1].get("eval_s", 0.0)) if rows else (0.0, 0.0)


def _logged(run_path: Path) -> list[dict[str, float]]:
    return read_scalars(run_path / "scalars.jsonl")


def _make_sim(cfg: TrainCfg[Any, Any], num_envs: int, seed: int) -> VecSim:
    sim = build_sim(configs.options_of(cfg.sim), num_envs, seed)
    check_actions(cfg.algo, sim, cfg.sim.name)
    return on_device(sim, device_of(cfg.device))


def _evaluated(sim: SimCfg) -> SimCfg:
    options: Any = configs.options_of(sim)
    if not isinstance(options, HasLogOnly):
        return sim
    has_mode: Any = options
    return replace(sim, options=replace(has_mode, log_only=NOT_LOG_ONLY))


def _refuse_shared_preferences(cfg: TrainCfg[Any, Any], processes: int) -> None:
    """Refuse preferences that each of several processes would learn for itself: equal steps had other rewards."""
    for one in cfg.rewards:
        if processes > 1 and isinstance(one.cfg, PreferencesCfg) and one.cfg.model is None:
            raise ConfigError(
                f"reward.{one.name}.model is None, and each of {processes} processes would learn a reward of its own:"
                " expected one process, or a directory of `robotrl reward train preferences`"
            )


def _with_own_budgets(cfg: TrainCfg[Any, Any], processes: int) -> TrainCfg[Any, Any]:
    """The config of one of the processes that score beside one another: budgets are those of the whole run."""
    rewards = tuple(share_of_budgets(one, processes) for one in cfg.rewards)
    return replace(cfg, rewards=rewards, algo=share_of_budgets(cfg.algo, processes))


def _make_training_sim(cfg: TrainCfg[Any, Any], seed: int, rewards: RewardLog | None, answers: str) -> VecSim:
    """Training sim with the configured rewards and curriculum; evaluations use neither.

    Args:
        cfg: the config.
        seed: seeds the sim.
        rewards: collects the means of each reward source. That of an actor process is given to the run by its sim.
        answers: see `RewardSetup`.
    """
    sim = _make_sim(cfg, cfg.sim.num_envs, seed)
    if rewards is not None and isinstance(sim, HasEpisodeLog):
        rewards.episode_log = sim
    if cfg.rewards:
        sim = declared(ReturnsSim, sim)(sim, rewards)
        means = None if rewards is None else rewards.means
        sim = going_on_after_success(with_rewards(sim, cfg.rewards, RewardSetup.of(cfg.algo, answers), means))
    if (cfg.actor.process or cfg.cluster.on) and rewards is not None:
        sim = declared(LoggedSim, sim)(sim, rewards)
    return sim if cfg.sim.curriculum is None else with_curriculum(sim, cfg.sim.curriculum, seed)


def _make_shard_sim(cfg: TrainCfg[Any, Any], answers: str, number: int, seed: int) -> VecSim:
    """Training sim of one shard of a cluster; it gives the scalars of its reward sources to the run.

    Args:
        cfg: the run's config.
        answers: see `RewardSetup`; each shard has a folder of its own in it.
        number: number of the shard.
        seed: seeds the sim.
    """
    options: Any = configs.options_of(cfg.sim)
    if any(one.name == "threads" and not vars(options)["threads"] for one in fields(options)):
        options = replace(options, threads=cfg.cluster.cpus)
    sim = replace(cfg.sim, num_envs=cfg.sim.num_envs // cfg.cluster.workers, options=options)
    part = _with_own_budgets(replace(cfg, device="cpu", sim=sim), cfg.cluster.workers)
    return _make_training_sim(part, seed, RewardLog(), str(Path(answers) / f"worker-{number}"))


def _make_eval_sim(cfg: TrainCfg[Any, Any]) -> VecSim | None:
    """Evaluation sim, None for a run without evaluations; checks its capabilities before training begins."""
    if not cfg.evaluation.episodes:
        return None
    # a training in log-only mode is judged outside of it
    sim = _make_sim(replace(cfg, sim=_evaluated(cfg.sim)), cfg.evaluation.num_envs, cfg.seed)
    if not isinstance(sim, HasStateIds):
        raise CapabilityError(
            f"sim {cfg.sim.name!r} lacks HasStateIds: a run cannot be evaluated on held-out starts"
            f"{why_lacking(sim, 'HasStateIds')}; evaluation.episodes 0 goes by the rollouts of training"
        )
    available = len(sim.state_ids("val"))
    if cfg.evaluation.episodes > available:
        raise out_of_range("evaluation.episodes", cfg.evaluation.episodes, f"{available} or less, the size of val")
    left = available - cfg.evaluation.episodes
    if cfg.evaluation.second_look > left:
        raise out_of_range("evaluation.second_look", cfg.evaluation.second_look, f"{left} or less, the rest of val")
    return sim


def _setup(
    cfg: TrainCfg[Any, Any],
    state: dict[str, Any] | None,
    run_path: Path,
    world: DistributedContext,
    rewards: RewardLog | None,
) -> Setup:
    init_policy = None
    if state is not None:
        # use the run's own policy and normalization: the run that it started from may have moved or changed
        init_policy = policy_from_tree(state["policy"], "the checkpoint", run_path / BASE)
    elif cfg.init_from is not None:
        # existing adapters are merged into the base before fine-tuning
        init_policy = changed(merged(load_policy(cfg.init_from)), name_values(cfg.init_changes, "init_changes"))
        if cfg.lora.rank:
            if world.rank == 0:
                write_checkpoint(run_path / BASE, {"policy": policy_tree(init_policy)}, step=0, kind=BASE)
            adapt(init_policy, cfg.lora, partial(probe, init_policy))
    check_memory(cfg.algo, cfg.policy if init_policy is None else init_policy)
    device, remote = device_of(cfg.device), cfg.actor.process
    # absolute: an actor process may have another working directory
    answers = str((run_path / ANSWERS).resolve())
    if cfg.cluster.on and world.rank:
        # shards count from 0 in each process
        answers = str(Path(answers) / f"learner-{world.rank}")
    if init_policy is not None:
        init_policy.to(device)
    if cfg.recompute and init_policy is not None:
        recompute(init_policy)
    return Setup(
        # an actor process keeps its policy on the CPU, as on a robot
        make_sim=partial(
            _make_training_sim,
            replace(cfg, device="cpu") if remote else cfg,
            world.seed(cfg.seed),
            # shards give their scalars with their rollouts
            None if cfg.cluster.on else rewards,
            answers,
        ),
        policy_cfg=cfg.policy,
        init_policy=init_policy,
        dataset=None if cfg.dataset is None else Path(cfg.dataset),
        seed=world.seed(cfg.seed),
        actor=cfg.actor,
        collectors=ClusterCollectors(cfg.cluster, partial(_make_shard_sim, cfg, answers), cfg.torch_threads, device)
        if cfg.cluster.on
        else OwnSim(),
        world=world,
        device=device,
        fsdp=cfg.fsdp,
        update_threads=cfg.update_threads,
        cache=cfg.cache,
        may_stop=cfg.stop_at_success is not None or cfg.stop_at_return is not None,
        resumed=state is not None,
        accept_data=cfg.accept_data,
        run=_name(run_path),
        answers=answers,
    )


def _name(run_path: Path) -> str:
    """Identifier of this run, by path and creation time, which differs from earlier runs at the same path."""
    config = run_path / "config.json"
    return f"{run_path.resolve()} of {config.stat().st_mtime_ns}" if config.is_file() else ""


def _evaluate(cfg: TrainCfg[Any, Any], run: Run, learner: Learner, sim: VecSim, iteration: int) -> EvalResult:
    """Evaluate on the first `val` starts, and render the first few of them."""
    frames: list[Any] = []
    count = min(cfg.evaluation.animation, cfg.evaluation.episodes, sim.num_envs)
    camera = sim if count and isinstance(sim, HasCamera) else None

    def draw(step_index: int) -> None:
        if camera is not None and step_index % FRAME_EVERY == 0 and len(frames) < FRAMES:
            frames.append(camera.render(range(count), camera.cameras[0], *FRAME_SIZE))

    # evaluation does not change the global generators, so training is the same with or without it
    kept = rng_state()
    result = evaluate(learner.policy, sim, episodes=cfg.evaluation.episodes, split="val", seed=cfg.seed, on_step=draw)
    set_rng_state(kept)
    if frames:
        videos = [[frame[i] for frame in frames] for i in range(count)]
        fps = 1 / (FRAME_EVERY * shown_dt_s(sim))
        write_gif(grid([np.stack(video) for video in videos]), run.path / "rollouts" / f"step_{iteration:06d}.gif", fps)
    return result


def rollout_score(scalars: Mapping[str, float], score: str) -> float | None:
    """Score of a run without evaluations: mean success or return of the episodes that ended in an iteration.

    None if no episode ended, or the algorithm reports none.
    """
    found = scalars.get(f"rollout_{score}", math.nan)
    return found if math.isfinite(found) else None


def threads_line(torch_threads: int, update_threads: int | None, sim: VecSim | None) -> str:
    """Text about the use of the cores; physics and torch take turns."""
    check_threads("torch_threads", torch_threads)
    check_threads("update_threads", update_threads or torch_threads)
    physics: int | None = getattr(sim, "threads", None)
    parts = [f"torch {torch_threads}"]
    parts += [f"updates {update_threads}"] if update_threads else []
    parts += [f"physics {physics}"] if physics else []
    return f"threads: {', '.join(parts)}; {usable_cores()} cores"


def _note(scalars: dict[str, float], best: float | None, score: str) -> str:
    parts = []
    if score == "return":
        if "rollout_return" in scalars:
            parts.append(f"rollout return {scalars['rollout_return']:.1f}")
    elif "rollout_success" in scalars:
        parts.append(f"rollout {100 * scalars['rollout_success']:.0f} %")
    if "loss" in scalars:
        parts.append(f"loss {scalars['loss']:.4f}")
    if best is not None:
        parts.append(f"best {best:.1f}" if score == "return" else f"best {100 * best:.0f} %")
    if "env_steps_per_s" in scalars:
        parts.append(f"{scalars['env_steps_per_s']:,.0f} env steps/s")
    return ", ".join(parts)
