"""Success of one policy wherever it runs: training sim, bundle in the loop, and in control by either servo.

The policy is the quickstart's, fine-tuned and exported. The training sim and the bundle in the loop take control
steps; the servos control the simulated robot at its inner rate in lock step with a simulated clock, so that no load of
the machine counts, with an inference of a millisecond. All see the same held-out starts, and the same noise for each
start and decision. A sample in real time stands beside them.
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.kit.cells import EVALUATED, OUT, Cell, CellResult
from benchmarks.kit.figures import Figure
from benchmarks.kit.markdown import table_row
from robotrl.api.evaluation import compare
from robotrl.deploy.buffers import Runtime
from robotrl.deploy.control.run import run_control
from robotrl.deploy.inference.link import AnswerKind
from robotrl.deploy.inference.request import unpacked
from robotrl.deploy.native.lockstep import LockstepCfg, run_in_lockstep
from robotrl.deploy.robots.channel import Message
from robotrl.deploy.robots.sim_robot import factory
from robotrl.deploy.runtime import Controller
from robotrl.fn.random.keyed_noise import decision_key
from robotrl.fn.stats import wilson
from robotrl.utils.files import dump_json, replace_file

DESCRIPTION = "success of the quickstart's policy in the training sim, as a bundle, and in control by either servo"
PEERS = {"g++": "apt install g++"}
SIM = "mujoco/peg-insert"
EPISODES, IN_REAL_TIME = 200, 64
LABELS = {
    "training": "training sim, torch",
    "bundle": "bundle in the loop, onnxruntime",
    "python": "Python servo, onnxruntime, in lock step",
    "native": "C++ servo, C++ engine, in lock step",
    "real_time": "C++ servo, C++ engine, in real time",
}
LIMIT_S = 4.0
"""Time limit of an episode of the sim."""
_INFERENCE_NS = 1_000_000


def cells(quick: bool) -> list[Cell]:
    """One cell: all ways for the quickstart of seed 0."""
    sizes = ("8", "2") if quick else (str(EPISODES), str(IN_REAL_TIME))
    command = ("python", "-m", "benchmarks.parity.bench", OUT, *sizes)
    return [Cell("parity", SIM, 0, command, "parity.json", goes_on=True, rule=EVALUATED)]


def aggregate(results: Sequence[CellResult]) -> dict[str, Figure]:
    """Success of each way, with its difference from the training sim in the note."""
    figures: dict[str, Figure] = {}
    for cell in results:
        ways = cell["result"]["ways"]
        wanted = ways["training"]
        for name, success in ways.items():
            found = wilson(sum(success), len(success))
            same = wanted[: len(success)]
            flipped = sum(a != b for a, b in zip(success, same, strict=True))
            figures[f"success_{name}"] = Figure(
                found.value,
                "success",
                peer=None if name == "training" else LABELS["training"],
                peer_value=None if name == "training" else sum(same) / len(same),
                runs=len(success),
                low=found.low,
                high=found.high,
                note=f"{LABELS[name]}; {flipped} starts end otherwise than in the training sim",
            )
    return figures


def table(document: Mapping[str, Any]) -> str:
    """Markdown table: one row a way."""
    lines = ["| way | episodes | success | difference, points | starts that flip |", "| --- | --- | --- | --- | --- |"]
    for cell in document["cells"].values():
        ways = cell["result"]["ways"]
        for name, success in ways.items():
            same = ways["training"][: len(success)]
            points = 100 * (sum(success) - sum(same)) / len(success)
            flipped = sum(a != b for a, b in zip(success, same, strict=True))
            others = ["", ""] if name == "training" else [f"{points:+.1f}", str(flipped)]
            lines.append(
                table_row([LABELS[name], str(len(success)), f"**{100 * sum(success) / len(success):.1f} %**", *others])
            )
    return "\n".join(lines)


def in_lockstep(runtime: Runtime, bundle: Path, starts: Sequence[int], seed: int) -> list[bool]:
    """Success of each start, under a servo in lock step."""
    controller = Controller.load(bundle, seed=seed, runtime=runtime)
    robot = factory(SIM)(0)
    cfg = LockstepCfg(steps=10, limit_s=LIMIT_S, inference_s=_INFERENCE_NS * 1e-9)
    return run_in_lockstep(runtime, controller.manifest, robot, _inference(controller, starts), starts, cfg).successes


def _inference(controller: Controller, starts: Sequence[int]) -> Callable[[Message], tuple[Message, int]]:
    """Inference with the noise of an evaluation: that of the start and of the decision within its episode."""
    decisions: Counter[int] = Counter()

    def infer(request: Message) -> tuple[Message, int]:
        obs, _ = unpacked(request.values, controller.manifest, bool(request.mode))
        key = decision_key(starts[request.episode - 1], decisions[request.episode])
        decisions[request.episode] += 1
        chunk = controller.infer(obs, key)
        return request._replace(kind=int(AnswerKind.CHUNK), mode=0, values=np.ravel(chunk)), _INFERENCE_NS

    return infer


def main(out: Path, episodes: int, in_real_time: int) -> None:
    """Measure every way, and write `parity.json`; a quickstart that is there is taken."""
    quickstart = out / "quickstart"
    if not (quickstart / "summary.json").is_file():
        command = [sys.executable, "-m", "robotrl.cli", "quickstart", "--out", str(quickstart), "--seed", "0"]
        subprocess.run(command, check=True)
    bundle = quickstart / "bundle"
    compared = compare(quickstart / "finetune", bundle, sim=SIM, episodes=episodes, seed=0)
    starts = [int(start) for start in compared.policy.ids]
    ways: dict[str, list[bool]] = {
        "training": [bool(success) for success in compared.policy.success],
        "bundle": [bool(success) for success in compared.bundle.success],
        "python": in_lockstep("python", bundle, starts, 0),
        "native": in_lockstep("native", bundle, starts, 0),
    }
    report = run_control(bundle, f"sim:{SIM}", state_ids=starts[:in_real_time], seed=0, runtime="native")
    ways["real_time"] = [episode.success for episode in report.episodes]
    late = report.servo_lateness_us
    result = {"ways": ways, "starts": starts, "servo_lateness_us": [late.p50, late.p99, late.max]}
    replace_file(out / "parity.json", dump_json(result))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
