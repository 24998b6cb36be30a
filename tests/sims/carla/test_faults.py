"""Servers that die, hang, lie or are not there, and clients that are killed: what comes of a CARLA sim's episodes."""

import os
import signal
import subprocess
import sys
import textwrap
import time
import warnings
from contextlib import suppress

import numpy as np
import psutil
import pytest
import torch

import tests.kits.carla_kit as kit
from benchmarks.carla.server import command
from robotrl.errors import ConfigError, DataError
from robotrl.sims.carla.faults import CarlaFault
from robotrl.sims.carla.scene import STATIC_BOX
from robotrl.sims.carla.server import free_port
from robotrl.sims.carla.stub.launch import StubServer
from robotrl.sims.carla.towns import town_of
from robotrl.testing.sims import leaves, play, random_actions
from tests.kits.paths_kit import ROOT
from tests.kits.refusals import raises_naming

kit.needs_carla()
STEPS = 25
SYNCHRONOUS = 0
"""Place of the flag among the settings of the protocol."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("town")
    (path / "town.xodr").write_text(kit.town())
    return path


def run(folder, faults, steps=STEPS, **options):
    """Steps of a sim whose servers have these faults, one list after another, and its losses and repeats."""
    server = command(folder, [str(folder / "town.xodr")], faults)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        sim = kit.make(folder, 1, 3, server=server, timeout_s=2.0, limit_s=1.5, **options)
        try:
            sim.reset(seed=3)
            found = play(sim, random_actions(sim, steps, seed=1))
        finally:
            sim.close()
    return found, sim.losses, sim.repeats, [str(one.message) for one in caught]


@pytest.fixture(scope="module")
def undisturbed(folder):
    return run(folder, [])[0]


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        ("die:tick:40", "the server ended"),
        ("hang:tick:40", ""),
        ("stale:tick:40", ""),
        ("stale=repeat:tick:40", ""),
        ("late=6:tick:40:1", ""),
        ("die:spawn:1", "the server ended"),
        ("hang:load_world:0:1", ""),
        ("die:version", ""),
    ],
)
def test_an_episode_whose_server_is_lost_is_repeated_to_the_same_step(folder, undisturbed, fault, why):
    found, losses, _, said = run(folder, [[fault]])
    assert losses == 1
    assert sum("lost its server" in text and why in text for text in said) == 1
    assert not any(step.info["lost"].any() for step in found)
    for step, other in zip(found, undisturbed, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(leaves(step), leaves(other), strict=True))


def test_several_losses_in_a_row_are_made_good_and_too_many_end_the_sim(folder, undisturbed):
    found, losses, repeats, _ = run(folder, [["die:tick:40"], ["die:tick:30"], ["hang:tick:20"]])
    assert (losses, repeats) == (3, 1)
    for step, other in zip(found, undisturbed, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(leaves(step), leaves(other), strict=True))
    with raises_naming(CarlaFault, "env 0", 3, "restarts"):
        run(folder, [["die:tick:40"]] * 3, restarts=2)


def test_an_episode_that_cannot_be_repeated_the_same_is_lost_and_begins_again(folder):
    # the second server refuses the traffic of the first
    found, losses, repeats, _ = run(folder, [["die:tick:40"], ["refuse:vehicle.*:1:4"]])
    assert (losses, repeats) == (1, 0)
    lost = [k for k, step in enumerate(found) if step.info["lost"].any()]
    assert len(lost) == 1
    before, at = found[lost[0] - 1], found[lost[0]]
    assert at.truncated.item() and not at.terminated.item() and at.reward.item() == 0.0
    for key, value in at.final_obs.items():
        assert torch.equal(value, before.obs[key])
    # the same start, from the beginning
    assert at.info["state_id"].item() == found[lost[0] + 1].info["state_id"].item()


def test_a_staggered_counter_survives_a_repetition(folder):
    sim = kit.make(folder, 2, 3, limit_s=2.0, vehicles=0)
    try:
        sim.reset(seed=3, options={"stagger": True})
        play(sim, random_actions(sim, 3))
        before = sim.elapsed_steps().tolist()
        assert before == [3, 13]
        for client in children("robotrl.sims.carla.client"):
            os.kill(client, signal.SIGKILL)
        with pytest.warns(UserWarning, match="client ended"):
            play(sim, random_actions(sim, 1))
        assert sim.elapsed_steps().tolist() == [4, 14]
        assert (sim.losses, sim.repeats) == (2, 2)
    finally:
        sim.close()


def test_a_killed_client_costs_nothing(folder, undisturbed):
    sim = kit.make(folder, 1, 3, limit_s=1.5)
    try:
        sim.reset(seed=3)
        actions = random_actions(sim, STEPS, seed=1)
        first = play(sim, actions[:5])
        (client,) = children("robotrl.sims.carla.client")
        os.kill(client, signal.SIGKILL)
        with pytest.warns(UserWarning, match="client ended"):
            rest = play(sim, actions[5:])
        for step, other in zip(first + rest, undisturbed, strict=True):
            assert all(torch.equal(a, b) for a, b in zip(leaves(step), leaves(other), strict=True))
    finally:
        sim.close()
    assert not children("robotrl.sims.carla")


def children(module):
    """Process ids of our descendants that run a module."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if any(part.startswith(module) for part in process.cmdline()) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
    return found


# servers that somebody else runs


def test_a_server_gets_its_clock_back(folder):
    with StubServer([folder / "town.xodr"]) as server:
        sim = kit.make(folder, 1, 0, server=None, ports=(server.port,))
        sim.reset()
        sim.step(torch.zeros(1, 2))
        assert server.control("state")["settings"][SYNCHRONOUS] is True
        sim.close()
        state = server.control("state")
        assert state["settings"][SYNCHRONOUS] is False
        assert not server.control("actors", type="vehicle.*") and not server.control("actors", type="sensor.*")


def test_a_server_gets_its_settings_back_after_a_client_was_lost(folder):
    with StubServer([folder / "town.xodr"]) as server:
        before = server.control("state")["settings"]
        sim = kit.make(folder, 1, 0, server=None, ports=(server.port,))
        sim.reset()
        (client,) = children("robotrl.sims.carla.client")
        os.kill(client, signal.SIGKILL)
        with pytest.warns(UserWarning, match="client ended"):
            sim.step(torch.zeros(1, 2))
        sim.close()
        assert server.control("state")["settings"] == before


def test_a_server_gets_its_clock_back_from_a_trainer_that_is_killed(folder):
    with StubServer([folder / "town.xodr"]) as server:
        program = f"""
        import pathlib, sys, time
        import torch
        import tests.kits.carla_kit as kit
        sim = kit.make(pathlib.Path({str(folder)!r}), 1, 0, server=None, ports=({server.port},))
        sim.reset()
        print("ready", flush=True)
        time.sleep(60)
        """
        with subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.PIPE, text=True, cwd=ROOT
        ) as trainer:
            assert trainer.stdout is not None and trainer.stdout.readline() == "ready\n"
            assert server.control("state")["settings"][SYNCHRONOUS] is True
            trainer.kill()
        for _ in range(100):
            if not server.control("state")["settings"][SYNCHRONOUS]:
                break
            time.sleep(0.1)
        assert server.control("state")["settings"][SYNCHRONOUS] is False
        assert not server.control("actors", type="vehicle.*")


def test_there_is_no_server(folder):
    port = free_port()
    with raises_naming(CarlaFault, f"127.0.0.1:{port}", "0.5 s"):
        kit.make(folder, 1, 0, server=None, ports=(port,), start_timeout_s=0.5)


def test_a_port_where_something_else_answers(folder):
    program = "import socket, time; s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1], flush=True)"
    program += "; time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        port = int(other.stdout.readline())
        try:
            with pytest.warns(UserWarning, match="lost its server"), raises_naming(CarlaFault, "env 0", "restarts"):
                kit.make(folder, 1, 0, server=None, ports=(port,), timeout_s=0.5, restarts=1)
        finally:
            other.kill()


def test_another_version_is_an_error_with_the_fix(folder):
    with raises_naming(ConfigError, "0.9.15", "0.9.16", "pip install carla==0.9.15"):
        kit.make(folder, faults=["version=0.9.15"])


def test_a_town_that_the_server_does_not_have(folder):
    sim = kit.make(folder, world="twon")
    with raises_naming(ConfigError, "town", "'twon'", "did you mean 'town'"):
        sim.reset()
    sim.close()


def test_an_ego_that_cannot_be_spawned(folder):
    sim = kit.make(folder, faults=["refuse:vehicle.lincoln*"])
    with raises_naming(CarlaFault, "vehicle.lincoln.mkz_2020", "cannot be spawned"):
        sim.reset()
    sim.close()
    sim = kit.make(folder, ego="vehicle.lincoln.mkz")
    with raises_naming(ConfigError, "blueprint", "'vehicle.lincoln.mkz'", "vehicle.lincoln.mkz_2020"):
        sim.reset()
    sim.close()


def test_traffic_that_cannot_be_spawned_is_said_once(folder):
    sim = kit.make(folder, faults=["refuse:vehicle.*:1:3"], vehicles=3)
    with pytest.warns(UserWarning, match="3 road users could not be spawned"):
        sim.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sim.reset()
    sim.close()


@pytest.mark.parametrize(
    ("server", "named"),
    [
        ("false --port={port}", "code 1"),
        ("nothing-like-this {port}", "nothing-like-this cannot be run"),
        ("x", "{port}"),
    ],
)
def test_a_command_that_starts_no_server(folder, server, named):
    with pytest.raises((ConfigError, CarlaFault)) as caught:
        kit.make(folder, server=server)
    assert named in str(caught.value)


def test_options_out_of_range(folder):
    for options, named in (
        ({"tick_s": 0.03}, ("tick_s", 0.03)),
        ({"pedals": "fast"}, ("pedals", "'fast'")),
        ({"server": None, "ports": (2000, 2002)}, ("num_envs", 1, "ports", 2)),
        ({"server": None, "ports": (99_999,)}, ("ports", 99_999)),
        ({"num_envs": 2, "server": None, "ports": (2000, 2000)}, ("ports", "2000, 2000", "another port for each env")),
        ({"num_envs": 64}, ("num_envs", 64, 32)),
        ({"server": "sh 'a {port}"}, ("server", "command line")),
        ({"vehicles": 501}, ("vehicles", 501)),
        ({"route_ids": ("1",)}, ("route_ids", "route file")),
    ):
        with raises_naming(ConfigError, *named):
            kit.make(folder, **options)


# errors that are no loss of a server


HOOK = """
class Own:
    def __init__(self, trigger): self.ticks = 0
    def begin(self, episode): pass
    def tick(self, episode):
        self.ticks += 1
        if self.ticks == 3: {fault}
    def end(self, episode): {end}
"""


@pytest.mark.parametrize(
    ("name", "fault", "end", "told"),
    [
        ("key", "raise KeyError('oops')", "pass", "KeyError"),
        ("run", "raise RuntimeError('a bug')", "pass", "RuntimeError: a bug"),
        (
            "refused",
            "episode.world.spawn_actor(episode.blueprint('vehicle.audi.tt'), episode.ego.get_transform())",
            "pass",
            "RuntimeError",
        ),
        ("exit", "raise SystemExit(3)", "pass", "SystemExit"),
        ("both", "raise KeyError('oops')", "raise ValueError('end')", "KeyError"),
    ],
)
def test_an_error_in_a_hook_is_told_once_and_the_server_is_given_back(
    folder, tmp_path, monkeypatch, name, fault, end, told
):
    (tmp_path / f"own_{name}.py").write_text(HOOK.format(fault=fault, end=end))
    path = tmp_path / "routes.xml"
    path.write_text(ROUTE.format(scenario='type="Mine"', inside=""))
    monkeypatch.chdir(tmp_path)
    with StubServer([folder / "town.xodr"]) as server:
        options = {"world": str(path), "server": None, "ports": (server.port,), "hooks": {"Mine": f"own_{name}:Own"}}
        sim = kit.make(folder, 1, 0, **options, settle_ticks=1)
        sim.reset()
        with raises_naming(ConfigError, f"own_{name}:Own", "'One'", told, "line"):
            for _ in range(3):
                sim.step(torch.zeros(1, 2))
        assert sim.losses == 0
        sim.close()
        assert server.control("state")["settings"][SYNCHRONOUS] is False
        assert not server.control("actors", type="vehicle.*")


ROUTE = """<routes><route id="1" town="town">
  <waypoints><position x="-70" y="1.75" z="0"/><position x="70" y="1.75" z="0"/></waypoints>
  <scenarios><scenario name="One" {scenario}>
    <trigger_point x="-40" y="1.75" z="0" yaw="0"/>{inside}
  </scenario></scenarios>
</route></routes>"""


@pytest.mark.parametrize("value", ["nan", "0", "-3", "far", "1e300"])
def test_a_scenario_with_an_impossible_number_is_refused_by_name(folder, tmp_path, value):
    path = tmp_path / "routes.xml"
    path.write_text(ROUTE.format(scenario='type="ParkedObstacle"', inside=f'<distance value="{value}"/>'))
    sim = kit.make(folder, world=str(path))
    with raises_naming(ConfigError, "scenario 'One'", "<distance>", repr(value), "0.1 to 1000"):
        sim.reset()
    sim.close()


def test_a_map_with_left_hand_traffic_is_refused(folder, tmp_path):
    path = tmp_path / "left.xodr"
    left = (folder / "town.xodr").read_text().replace("<road ", '<road rule="LHT" ')
    path.write_text(left)
    with raises_naming(DataError, "LHT", "mirrored"):
        kit.make(folder, world=str(path))
    path.write_text("<OpenDRIVE>")
    with raises_naming(DataError, "bad", "XML"):
        kit.make(folder, world=str(path.rename(tmp_path / "bad.xodr")))
    with pytest.raises(DataError, match="LHT"):
        town_of("left", left, np.zeros(0, STATIC_BOX), [], 8, 60.0)


def test_a_sim_that_is_closed_or_not_reset_starts_nothing(folder):
    sim = kit.make(folder)
    with raises_naming(ConfigError, "reset first"):
        sim.step(torch.zeros(1, 2))
    sim.reset()
    sim.close()
    sim.close()
    with raises_naming(CarlaFault, "closed"):
        sim.step(torch.zeros(1, 2))
    assert sim.losses == 0


def test_a_step_that_is_interrupted_is_made_good_and_the_server_is_given_back(folder):
    def interrupt(number, frame):
        raise KeyboardInterrupt

    def interrupted():
        server.control("fault", fault="late=1:tick:0:1")
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        with pytest.raises(KeyboardInterrupt):
            sim.step(torch.zeros(1, 2))

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with StubServer([folder / "town.xodr"]) as server:
            sim = kit.make(folder, 1, 0, server=None, ports=(server.port,))
            sim.reset(seed=0)
            interrupted()
            with pytest.warns(UserWarning, match="was interrupted"):
                sim.step(torch.zeros(1, 2))
            assert sim.losses == 1
            interrupted()
            sim.close()
            assert server.control("state")["settings"][SYNCHRONOUS] is False
            assert not server.control("actors", type="vehicle.*")
    finally:
        signal.signal(signal.SIGALRM, before)


def test_a_server_serves_one_sim_of_a_process(folder):
    with StubServer([folder / "town.xodr"]) as server:
        sim = kit.make(folder, 1, 0, server=None, ports=(server.port,))
        with raises_naming(ConfigError, f"127.0.0.1:{server.port}", "another sim", "evaluation.episodes 0"):
            kit.make(folder, 1, 0, server=None, ports=(server.port,))
        sim.close()
        kit.make(folder, 1, 0, server=None, ports=(server.port,)).close()


def test_an_ego_that_somebody_removes_is_a_loss(folder):
    with StubServer([folder / "town.xodr"]) as server:
        # a server that is slow on a busy machine is no second loss
        sim = kit.make(folder, 1, 0, server=None, ports=(server.port,), timeout_s=20.0)
        sim.reset(seed=0)
        (ego,) = [
            one for one in server.control("actors", type="vehicle.*") if one["attributes"].get("role_name") == "hero"
        ]
        server.control("destroy", id=ego["id"])
        with pytest.warns(UserWarning, match="lost its server"):
            sim.step(torch.zeros(1, 2))
        assert sim.losses == 1
        sim.close()
