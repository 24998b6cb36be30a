"""`robotrl deploy --remote`: a server infers, and the robot is held and damped as with a slow inference here."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from robotrl.cli.main import main
from robotrl.deploy.bundle.bundle import open_bundle
from robotrl.deploy.control.log import read_log
from robotrl.deploy.control.replay import replay
from robotrl.deploy.control.run import run_control
from robotrl.deploy.control.safety import Mode, Reason
from robotrl.deploy.remote.client import RemotePolicy
from robotrl.deploy.remote.controller import RemotePolicyCfg, remote_controller
from robotrl.deploy.remote.protocol import RemoteError
from robotrl.deploy.runtime import Controller
from robotrl.errors import DataError
from tests.kits import deploy_graphs, deploy_kit, serve_kit
from tests.kits.real_time import undisturbed
from tests.kits.serve_kit import OBS, TOKEN, served

CART = "sim:tests.kits.deploy_cart:make_cart"
ENDLESS = "sim:tests.kits.serve_cart:make"


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With time for the network: a robot may act on observations of half a second."""
    folder = tmp_path_factory.mktemp("patient")
    copy = deploy_kit.copied("goal", folder, tmp_path_factory.getbasetemp())

    def patient(data: dict[str, dict[str, object]]) -> None:
        data["timing"]["max_observation_age_s"] = 0.5

    return deploy_graphs.reseal(copy, patient)


def test_a_remote_controller_acts_as_one_here(bundle: Path) -> None:
    here = Controller.load(bundle, seed=2)
    with served(bundle) as server, remote_controller(bundle, RemotePolicyCfg(server.url), seed=2) as remote:
        assert remote.golden_error == here.golden_error
        for _ in range(5):
            assert (remote.step(OBS) == here.step(OBS)).all()
        assert remote.decision == here.decision == 2


@undisturbed
def test_the_whole_way(bundle: Path, tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    with served(bundle, "--token-env", "T", T=TOKEN) as server:
        report = run_control(bundle, CART, episodes=2, log=log, remote=RemotePolicyCfg(server.url, TOKEN))
    assert report.successes == 2 and report.inference == server.url
    assert (report.safety.held, report.safety.damped) == (0, 0)
    header, _ = read_log(log)
    assert header["inference"] == server.url
    # what the server computed is computed again here
    again = replay(log, bundle)
    assert again.decisions > 10 and again.policy_max_abs == again.sent_max_abs == 0.0
    assert TOKEN not in log.read_text()


@pytest.mark.parametrize(
    ("number", "reason", "says"),
    [
        (signal.SIGKILL, Reason.INFERENCE_FAILED, r"policy server: disconnected: .* for 5 ticks in a row"),
        (signal.SIGSTOP, Reason.ACTION_LATE, r"observation was older than 0\.5 s|has not ended after"),
    ],
)
def test_a_server_that_dies_or_hangs_holds_then_damps(
    bundle: Path, tmp_path: Path, number: signal.Signals, reason: Reason, says: str
) -> None:
    log = tmp_path / "log.jsonl"
    command = [sys.executable, "-m", "robotrl.cli", "deploy", str(bundle), "--robot", ENDLESS, "--episodes", "1"]
    mark = tmp_path / "moving"
    with (
        served(bundle) as server,
        subprocess.Popen(
            [*command, "--log", str(log), "--remote", server.url],
            env={**os.environ, "CART_MARK": str(mark)},
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
        ) as process,
    ):
        serve_kit.until(mark.exists, 60.0)
        time.sleep(0.2)
        server.process.send_signal(number)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 2
    assert re.search(says, said.splitlines()[-1]), said
    assert said.splitlines()[-1].endswith("held, then damped")
    _, records = read_log(log)
    ticks = [r for r in records if r["kind"] == "tick"]
    active = [r for r in ticks if r["mode"] == Mode.ACTIVE]
    assert len(active) > 5
    bad = ticks[-5:]
    assert [r["mode"] for r in bad] == [1, 1, 1, 1, 2]
    assert all(Reason(r["reason"]) & reason for r in bad)
    assert all(r["sent"] == [0.0, 0.0] for r in bad)
    assert replay(log, bundle).sent_max_abs == 0.0


def test_a_server_of_another_bundle_or_another_graph_moves_nothing(
    bundle: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = deploy_kit.made("flow", tmp_path_factory.getbasetemp())[0]
    with served(other) as server, pytest.raises(RemoteError, match=r"it runs bundle .*: expected"):
        run_control(bundle, CART, episodes=1, remote=RemotePolicyCfg(server.url))
    # it states this bundle and computes another one
    with (
        serve_kit.lying(open_bundle(bundle).manifest, lambda r, m: [serve_kit.chunk(r.id)]) as url,
        pytest.raises(DataError, match=r"golden\.safetensors: tick \d+, actions\[0\] 'push' is 0\.0 here: recorded"),
    ):
        run_control(bundle, CART, episodes=1, remote=RemotePolicyCfg(url))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--token-env", "T"], "--token-env needs --remote"),
        (["--tls-ca", "x"], "--tls-ca needs --remote"),
        (["--remote", "http://x"], "--remote is 'http://x': expected ws://HOST:PORT"),
        (["--remote", "ws://127.0.0.1:1", "--token-env", "NOT_SET_HERE"], "which is not set"),
        (["--remote", "ws://127.0.0.1:1", "--tls-ca", "x"], "expected none with a ws:// address"),
    ],
)
def test_unusable_options_are_refused(
    bundle: Path, capsys: pytest.CaptureFixture[str], options: list[str], says: str
) -> None:
    assert main(["deploy", str(bundle), "--robot", CART, *options]) == 2
    assert says in capsys.readouterr().err


def test_committed_actions_reach_the_server(tmp_path: Path) -> None:
    """A policy that knows the actions under way: with them, without them, and golden ticks of both."""
    bundle = serve_kit.committed_bundle(tmp_path)
    here = Controller.load(bundle)
    names = {port.role: port for port in here.manifest.prefix}
    obs = {port.name: np.zeros(port.shape, np.float32) for port in here.manifest.observations}
    under_way = {port.name: np.ones(port.shape, np.float32) for port in names.values()}
    with served(bundle) as server:
        with RemotePolicy(server.url, timeout_s=120.0) as policy:
            for given in (obs, {**obs, **under_way}, obs):
                assert np.array_equal(policy.infer(given, 3), here.infer(given, 3))
            assert not np.array_equal(here.infer(obs, 3), here.infer({**obs, **under_way}, 3))
            with pytest.raises(RemoteError, match=f"observation '{names['prefix_mask'].name}' is missing"):
                policy.infer({**obs, names["prefix"].name: under_way[names["prefix"].name]}, 3)
        with remote_controller(bundle, RemotePolicyCfg(server.url)) as remote:
            assert remote.golden_error == here.golden_error
