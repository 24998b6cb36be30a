"""Rounds of improvement: read or collect, label, fit, gate. A round that is killed anywhere goes on where it was."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

from robotrl.config import SimCfg
from robotrl.datasets.layout import INFO
from robotrl.errors import ConfigError, DataError, check_at_least, check_number
from robotrl.improve.bundles import check_exported_again, export_like
from robotrl.improve.collecting import collect
from robotrl.improve.dataset_logs import read_dataset_log
from robotrl.improve.gate import NO_EVIDENCE, GateSettings, gate, judges, without_evidence
from robotrl.improve.gather import gather
from robotrl.improve.logged import LogBook, LogFault, OwnEpisode, joined
from robotrl.improve.methods.base import FitSettings, HeldOutQuality, ImproveMethod
from robotrl.improve.outcomes import OutcomeCheck, check_outcomes
from robotrl.improve.pieces import write_episodes, write_pieces
from robotrl.improve.refusals import critic_refusal, data_refusal
from robotrl.improve.state import ROUND_STAGES, ImproveState, RoundRecord, Stage, begin, write_state
from robotrl.improve.target import Target, policy_digest, read_target
from robotrl.improve.trials import judge_trials
from robotrl.registry import METHODS, check_num_envs, make_sim
from robotrl.run.locking import WriteLock
from robotrl.spec import HasStateIds, Split

EPISODES, DATA, FIT, BUNDLE = "episodes", "data", "fit", "bundle"
SEED_STEP = 1000
"""Distance of the seeds of two rounds."""
OnStage = Callable[[int, Stage], None]
"""Called before each stage with the number of the round, 0 for the reading of the logs."""


class ImproveSettings(NamedTuple):
    """Settings of an improvement."""

    policy: Path
    """Run, checkpoint or bundle."""
    out: Path
    """Folder of all that is written."""
    logs: tuple[Path, ...] = ()
    """Control logs, datasets, and folders of these."""
    method: str = "pa-rl"
    rounds: int = 1
    collect_episodes: int = 0
    """Episodes that the policy drives in its sim in each round after the first; without logs in the first, too."""
    in_sim: bool = True
    """True if the policy's sim stands for its robot: it tells outcomes again, collects and judges."""
    detect: float = 0.1
    """Smallest difference of success that matters."""
    split: Split = "val"
    """Starts of the sim that judge."""
    starts: int | None = None
    """Most of these for a verdict; None for all, or twice those of a fixed plan."""
    trials: tuple[Path, Path] | None = None
    """Control logs of the policy of before and of the last candidate on the robot, on the same starts."""
    sim: str | None = None
    """Name of another sim; None takes that of the policy's training."""
    options: Mapping[str, Any] = {}
    """Options of the sim that override those of the training."""
    settings: Mapping[str, Any] = {}
    """Config fields of the training by path, e.g. "algo.updates"."""
    seed: int = 0
    num_envs: int = 64
    device: str = "cpu"

    @property
    def gate(self) -> GateSettings:
        """Settings of the gate."""
        return GateSettings(self.detect, self.rounds, self.split, self.starts, self.seed, self.num_envs, self.device)

    def to_json(self) -> dict[str, Any]:
        """Settings that the numbers depend on, as JSON values: not the folder, nor trials, which come later."""
        rest = {name: value for name, value in self._asdict().items() if name not in ("out", "trials")}
        plain = {"policy": str(self.policy), "logs": [str(path) for path in self.logs]}
        given = {**rest, **plain, "options": dict(self.options), "settings": dict(self.settings)}
        # as they are read back
        return json.loads(json.dumps(given))


class _Work(NamedTuple):
    """Settings, policy and method, which all stages share."""

    settings: ImproveSettings
    target: Target
    method: ImproveMethod

    def folder(self, number: int) -> Path:
        """Folder of a round."""
        return self.settings.out / f"round-{number}"

    def episodes(self, number: int) -> Path:
        """Dataset of the episodes that a round added; 0 for those of the logs."""
        return self.settings.out / f"{EPISODES}-{number}"


def improve(settings: ImproveSettings, on_stage: OnStage | None = None) -> tuple[ImproveState, Target]:
    """Improve a policy, or go on with an improvement that was killed.

    The policy of before is read and never written: where no candidate is accepted, it is what it was, byte for byte.

    Args:
        settings: see `ImproveSettings`.
        on_stage: called before each stage.

    Returns:
        The final state, and the policy that was to be improved.

    Raises:
        CapabilityError: the method cannot improve this policy.
        ConfigError: a setting is out of range, or the folder holds an improvement with others.
        DataError: a log or a checkpoint is damaged, or a fit changed the policy of before.
    """
    check_settings(settings)
    target = read_target(settings.policy, settings.sim, settings.options)
    _check_budget(settings, target)
    method: ImproveMethod = METHODS.load(settings.method)
    method.check(target.policy)
    if target.manifest is not None:
        check_exported_again(settings.policy, target.manifest)
    work = _Work(settings, target, method)
    new = ImproveState(settings.to_json(), str(target.policy), policy_digest(target.policy), notes=_notes(work))
    state = begin(settings.out, new)
    settings.out.mkdir(parents=True, exist_ok=True)
    lock = WriteLock(settings.out, "improvement")
    try:
        state = _reopened(state, settings)
        write_state(settings.out, state)
        while state.stage != "done":
            if on_stage is not None:
                on_stage(len(state.rounds), state.stage)
            state = _STAGES[state.stage](work, state)
            write_state(settings.out, state)
    finally:
        lock.release()
    return state, target


def check_settings(settings: ImproveSettings) -> None:
    """Check settings that need no file.

    Raises:
        ConfigError: one is out of range, or contradicts another.
    """
    METHODS.check(settings.method)
    check_at_least("--rounds", settings.rounds, 1)
    check_at_least("--collect-episodes", settings.collect_episodes, 0)
    check_at_least("--seed", settings.seed, 0)
    check_num_envs("--num-envs", settings.num_envs)
    check_number("--detect", settings.detect, 0.01, 0.9)
    if not settings.logs and not settings.collect_episodes:
        raise ConfigError("--logs is not given: expected control logs or datasets, or --collect-episodes N in a sim")
    if settings.rounds > 1 and not settings.collect_episodes:
        text = "expected --collect-episodes N beside it, for a round without new episodes would learn nothing new"
        raise ConfigError(f"--rounds is {settings.rounds}: {text}")
    if settings.collect_episodes and not settings.in_sim:
        raise ConfigError(f"--collect-episodes is {settings.collect_episodes} beside --no-sim: expected one of the two")
    if settings.trials is not None and settings.in_sim:
        raise ConfigError("--trials is given, and the sim judges: expected --no-sim beside it")


def _check_budget(settings: ImproveSettings, target: Target) -> None:
    """Check that the budget of the log-only mode is enough for the episodes of all rounds.

    Raises:
        ConfigError: it is not, or the mode is on and nothing is collected.
    """
    if target.log_only is None:
        return
    if not settings.collect_episodes:
        raise ConfigError("--sim.log-only is given, and nothing is collected: expected --collect-episodes N beside it")
    collecting = settings.rounds - bool(settings.logs)
    needed, budget = collecting * settings.collect_episodes, int(target.log_only["episodes"])
    if needed > budget:
        raise ConfigError(
            f"log_only.episodes is {budget}: expected {needed} or more, for {collecting} rounds with --collect-episodes"
            f" {settings.collect_episodes} each"
        )


def check_split(episodes: Sequence[OwnEpisode], target: Target, split: Split) -> None:
    """Check that the starts that judge are none of those that are learned from.

    Raises:
        ConfigError: some of them are.
    """
    ours = {episode.start for episode in episodes if episode.sim == target.sim}
    with closing(make_sim(target.sim, num_envs=1, seed=0, **target.options)) as vec:
        if isinstance(vec, HasStateIds) and (shared := sorted(ours & set(vec.state_ids(split)))):
            other = "test" if split == "val" else "val"
            raise ConfigError(
                f"--split is {split!r}: {len(shared)} starts of the logs are of it, the first is {shared[0]}: expected"
                f" starts that nothing was learned from, e.g. --split {other}"
            )


def episodes_of(out: Path, target: Target, rounds: int) -> LogBook:
    """All episodes that are learned from, of the logs and of the first rounds."""
    paths = [out / f"{EPISODES}-{number}" for number in range(rounds + 1)]
    return joined([read_dataset_log(path, target) for path in paths if (path / INFO).is_file()])


def _notes(work: _Work) -> tuple[str, ...]:
    out: list[str] = []
    if work.target.bundle_id is None and work.settings.logs:
        out.append("a run was given, no bundle: that control logs are of its policy was not checked")
    if not work.settings.in_sim:
        out.append("no sim stands for the robot: success was taken as the logs tell it")
    return tuple(out)


def _reopened(state: ImproveState, settings: ImproveSettings) -> ImproveState:
    """The state, at the gate again where the last candidate was not judged and there are trials now."""
    if settings.trials is None:
        return state
    gated = state.last.gate if state.rounds else None
    waits = gated is not None and gated["outcome"] in (NO_EVIDENCE, "open")
    if state.stage != "gate" and not (state.stage == "done" and waits):
        raise ConfigError("--trials is given: expected an improvement whose last candidate waits for evidence")
    return state._replace(stage="gate")


def _read(work: _Work, state: ImproveState) -> ImproveState:
    """Read the logs and check them; a fault of one of them ends it all."""
    settings, target = work.settings, work.target
    if not settings.logs:
        return _next_round(state)
    book = gather(settings.logs, target)
    state = state._replace(left_out=dict(book.left_out), faults=_faults(book.faults))
    if book.faults:
        return state._replace(stage="done")
    if settings.in_sim:
        check_split(book.episodes, target, settings.split)
        checked = _told_again(work, book)
        counts = {"same": checked.same, "other": checked.other}
        state = state._replace(checked=counts, faults=_faults(checked.faults))
        if checked.faults:
            return state._replace(stage="done")
    if book.episodes:
        _once(work.episodes(0), lambda out: write_episodes(out, book.episodes, target))
    return _next_round(state)


def _told_again(work: _Work, book: LogBook) -> OutcomeCheck:
    target = work.target
    if not any(episode.sim == target.sim for episode in book.episodes):
        return OutcomeCheck(0, len(book.episodes), ())
    vec = make_sim(target.sim, num_envs=work.settings.num_envs, seed=work.settings.seed, **target.options)
    with closing(vec):
        return check_outcomes(book.episodes, target.sim, vec)


def _collect(work: _Work, state: ImproveState) -> ImproveState:
    """Let the policy of the round drive, unless the round learns from the logs alone."""
    number, settings = state.last.number, work.settings
    if settings.collect_episodes and (number > 1 or not settings.logs):

        def write(out: Path) -> None:
            seed = settings.seed + SEED_STEP * number
            book = collect(Path(state.policy), work.target, settings.collect_episodes, seed, settings.num_envs)
            write_episodes(out, book.episodes, work.target)

        _once(work.episodes(number), write)
    return state._replace(stage="label")


def _label(work: _Work, state: ImproveState) -> ImproveState:
    """Join all episodes and label them; too few or too even ones end the round."""
    number = state.last.number
    episodes = episodes_of(work.settings.out, work.target, number).episodes
    state = state.with_last(episodes=len(episodes), successes=sum(episode.success for episode in episodes))
    if (refusal := data_refusal(episodes)) is not None:
        return _ended(state.with_last(refusal=refusal._asdict()), work)
    _once(work.folder(number) / DATA, lambda out: write_pieces(out, episodes, work.target))
    return state._replace(stage="fit")


def _fit(work: _Work, state: ImproveState) -> ImproveState:
    """Train the candidate; a critic that cannot rank held-out outcomes ends the round."""
    number, settings = state.last.number, work.settings
    folder = work.folder(number)
    fit = FitSettings(
        SimCfg(work.target.sim, options=dict(work.target.options)),
        settings.seed + SEED_STEP * number,
        settings.device,
        settings.settings,
    )
    found = work.method.fit(Path(state.policy), folder / DATA, folder / FIT, fit)
    check_unchanged(state)
    quality: HeldOutQuality | None = found.critic
    state = state.with_last(candidate=str(found.policy), critic=None if quality is None else quality._asdict())
    if (refusal := critic_refusal(quality)) is not None:
        return _ended(state.with_last(refusal=refusal._asdict()), work)
    return state._replace(stage="gate")


def check_unchanged(state: ImproveState) -> None:
    """Check that the policy of before is what it was.

    Raises:
        DataError: it was changed.
    """
    if policy_digest(Path(state.policy)) != state.digest:
        raise DataError(
            f"{state.policy} was changed since the improvement began: expected a policy that nobody trains meanwhile"
        )


def _gate(work: _Work, state: ImproveState) -> ImproveState:
    """Judge the candidate, which takes the policy's place only if it is better."""
    record, settings, target = state.last, work.settings, work.target
    assert record.candidate is not None
    candidate, offered = Path(record.candidate), work.folder(record.number) / BUNDLE
    unable = judges(target, settings.split) if settings.in_sim else "no sim stands for the robot"
    if settings.trials is not None:
        ids = (target.bundle_id, None)
        if target.manifest is not None:
            ids = (target.bundle_id, export_like(candidate, offered, target.sim, target.manifest))
        decision = judge_trials(*settings.trials, settings.gate.test, ids)
    elif unable:
        decision = without_evidence(unable)
        if target.manifest is not None:
            # the robot has to try it before anything can be said
            export_like(candidate, offered, target.sim, target.manifest)
    else:
        decision = gate(Path(state.policy), candidate, target, settings.gate, record.number)
    check_unchanged(state)
    state = state.with_last(gate=decision._asdict())
    if not decision.accepted:
        return _ended(state, work)
    return _ended(state._replace(policy=str(candidate), digest=policy_digest(candidate)), work)


def _next_round(state: ImproveState) -> ImproveState:
    record = RoundRecord(len(state.rounds) + 1, state.policy)
    return state._replace(stage=ROUND_STAGES[0], rounds=(*state.rounds, record))


def _ended(state: ImproveState, work: _Work) -> ImproveState:
    """The state after a round: the next one, or the end with a new bundle in place of a bundle."""
    if state.last.number < work.settings.rounds:
        return _next_round(state)
    bundle = state.bundle
    if state.improved and work.target.manifest is not None:
        place = work.settings.out / BUNDLE
        export_like(Path(state.policy), place, work.target.sim, work.target.manifest)
        bundle = str(place)
    return state._replace(stage="done", bundle=bundle)


def _faults(faults: Sequence[LogFault]) -> tuple[dict[str, str], ...]:
    return tuple({"kind": fault.kind, "text": fault.text} for fault in faults)


def _once(place: Path, write: Callable[[Path], object]) -> None:
    """Write a dataset unless a session that was killed afterwards has; a dataset appears whole or not at all."""
    for rest in place.parent.glob(f".{place.name}.partial-*"):
        shutil.rmtree(rest)
    if not (place / INFO).is_file():
        write(place)


_STAGES: dict[Stage, Callable[[_Work, ImproveState], ImproveState]] = {
    "read": _read,
    "collect": _collect,
    "label": _label,
    "fit": _fit,
    "gate": _gate,
}
