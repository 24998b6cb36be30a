"""`robotrl memory`: of a stored policy, and of a published one, neither of which is loaded."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import tests.algos.test_grpo as grpo
from robotrl.cli.main import main
from robotrl.memory_estimate.estimate import on_meta_device
from robotrl.memory_estimate.model_sizes import interface, published
from robotrl.memory_estimate.published import PARAMETERS, summary_line
from robotrl.run.policy_checkpoint import load_policy


def lines(text: str) -> list[list[float]]:
    """The numbers of each line: GiB in all, weights, optimizer, update, stored; millions that learn, of all."""
    return [[float(x) for x in re.findall(r"\d+(?:\.\d+)?(?:e-\d+)?", line)] for line in text.splitlines()]


def test_of_a_stored_policy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    clone = grpo.saved(tmp_path / "clone")
    assert main(["memory", str(clone), "--rows", "64", "--rank", "2"]) == 0
    plain, again = lines(capsys.readouterr().out)
    assert again[3] < plain[3] and again[:1] < plain[:1], "what is recomputed needs less"
    assert plain[1] == again[1] and plain[5] < plain[6]
    assert main(["memory", str(clone), "--rows", "64"]) == 0
    whole, _ = lines(capsys.readouterr().out)
    size = sum(x.numel() for x in load_policy(clone).parameters())
    assert whole[5] == whole[6] == pytest.approx(size / 1e6, rel=0.01)


@pytest.mark.parametrize(("name", "size"), [("openvla", 7_541_237_184), ("smolvla", 450_046_176), ("pi0", 3.2e9)])
def test_published_sizes_take_no_memory(name: str, size: float) -> None:
    seen = interface(name)
    with on_meta_device():
        policy = published(name, seen)
        found = sum(x.numel() for x in policy.net.parameters())
        assert sum(x.numel() for x in policy.parameters()) == PARAMETERS[name]
    # the tabletop's states and actions are narrower than what SmolVLA and pi0 pad theirs to
    assert found == pytest.approx(size, rel=0.03)


def test_weights_and_moments_are_told_before_torch_is_imported() -> None:
    assert summary_line("smolvla").startswith(
        "smolvla: 450 million parameters, 1.68 GiB of weights in float32, 3.35 GiB"
    )
    program = "import sys, robotrl.memory_estimate.published as m; m.check_name('pi0'); print(m.summary_line('pi0'))"
    program += "; assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.startswith("pi0: 3,238 million"), done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["openvl"], "policy 'openvl' is unknown: did you mean 'openvla'?"),
        (["lerobot/smolvla_base"], "expected smolvla (that network at published size), or a checkpoint that"),
        (["someone/policy@main"], "expected openvla, smolvla, pi0, or a checkpoint that robotrl import made"),
        (["openvla", "--rows", "0"], "--rows is 0: expected 1 or more"),
        (["smolvla", "--rank", "-1"], "--rank is -1"),
    ],
)
def test_mistakes_are_one_line(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["memory", *arguments]) == 2
    assert message in capsys.readouterr().err
