"""The stepping bench: every route does the same physics, other work is noticed, and the best peer counts."""

from __future__ import annotations

import pytest

from benchmarks.kit.figures import Paired
from benchmarks.stepping import bench
from benchmarks.stepping import tape as stepping_tape
from robotrl.errors import RobotrlError


@pytest.mark.parametrize("kind", bench.PEG_ACTIONS)
def test_env_and_bare_batch_pass_through_the_same_states(kind: str) -> None:
    # a route raises when it does not end where the tape ends; the episodes are staggered, so restarts are on it
    found = bench.measure(bench.PEG, 4, kind, 90, 1, bench.bare)
    assert set(found.samples) == {bench.OURS, bench.BARE}
    assert all(rate > 0 for samples in found.samples.values() for rate in samples)


def test_other_work_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    real = stepping_tape.record

    def other(sim: object, kind: str, steps: int) -> stepping_tape.Tape:
        tape = real(sim, kind, steps)
        return tape._replace(ctrl=tape.ctrl + 1e-3)

    monkeypatch.setattr(bench, "record", other)
    with pytest.raises(RobotrlError, match="the bare batch left the recorded states"):
        bench.measure(bench.PEG, 2, "random", 3, 1, bench.bare)


def test_restarts_are_on_the_tape_and_envs_without_one_are_told() -> None:
    from robotrl.registry import make_sim

    sim = make_sim(bench.PEG, num_envs=4, seed=0, threads=1)
    limit = sim.core.task.limit_steps
    tape = stepping_tape.record(sim, "random", limit // 2)
    ended = {int(i) for ids, _ in tape.restarts for i in ids}
    # env i begins at i/4 of the time limit: half a limit later, 2 and 3 have restarted
    assert ended == {2, 3} and tape.whole.tolist() == [0, 1]
    assert tape.actions.shape[:2] == tape.ctrl.shape[:2] == (limit // 2, 4)


def test_the_best_of_envpool_counts_and_gaps_stay_gaps() -> None:
    samples = {bench.OURS: (90.0, 90.0), bench.BARE: (100.0, 100.0), bench.C_LOOP: (45.0, 45.0)}
    fast = "EnvPool v4, 256 envs"
    found = bench.cheetah_figures(
        64,
        Paired({**samples, "EnvPool v4, 16 envs": (30.0, 30.0), fast: (60.0, 60.0), "EnvPool v5, 64 envs": (5.0, 5.0)}),
    )
    assert found["halfcheetah_env_steps_per_s_64_envs"].ratio == pytest.approx(0.9)
    assert found["halfcheetah_env_steps_per_s_vs_c_loop"].ratio == pytest.approx(2.0)
    assert found["halfcheetah_env_steps_per_s_vs_envpool"].peer == fast
    assert found["halfcheetah_env_steps_per_s_vs_envpool"].ratio == pytest.approx(1.5)
    assert found["halfcheetah_env_steps_per_s_vs_sync"].ratio is None
    without = bench.cheetah_figures(64, Paired(samples))["halfcheetah_env_steps_per_s_vs_envpool"]
    assert (without.peer, without.peer_value, without.ratio) == ("EnvPool", None, None)
    assert list(bench.cheetah_figures(16, Paired({bench.OURS: (1.0,), bench.BARE: (2.0,)}))) == [
        "halfcheetah_env_steps_per_s_16_envs"
    ]


def test_every_peer_does_the_same_work_and_other_work_is_noticed() -> None:
    from benchmarks.stepping import peers
    from robotrl.registry import make_sim

    sim = make_sim(bench.CHEETAH, num_envs=16, seed=0, threads=1)
    # long enough that the last env times out: its row must not be compared
    tape = stepping_tape.record(sim, "random", 70)
    assert tape.whole.tolist() == list(range(15))
    changed = tape._replace(last=tape.last + 1e-9)
    for route in (peers.c_loop, peers.sync_vector_env):
        assert route(sim, tape)() > 0
        with pytest.raises(RobotrlError, match="left the recorded states by 1e-09"):
            route(sim, changed)()


def test_envpool_moves_as_ours_does() -> None:
    pytest.importorskip("envpool")
    from benchmarks.stepping import peers

    # raises when it does not
    routes = peers.envpool_routes(bench.CHEETAH, 256, 1)
    assert len(routes) == 6 and all(route() > 0 for route in routes.values())
