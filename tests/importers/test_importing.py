"""`robotrl import`: what is read is looked at, compared with recorded actions, stored, and can be evaluated."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import robotrl
from robotrl.cli.main import main
from robotrl.datasets.chunks import load_chunks
from robotrl.datasets.reader import read_dataset
from robotrl.errors import ConfigError, DataError
from robotrl.fn.bc_loss import clone_loss_of
from robotrl.importers import lerobot, pi0
from robotrl.importers.examine import ActionErrors, check_labels, effects, labels
from robotrl.importers.openvla import config
from robotrl.importers.policy import ImportCfg, check_settings
from robotrl.run.checkpoint import read_checkpoint
from robotrl.run.policy_checkpoint import load_policy
from robotrl.transforms import Affine, inverse
from tests.importers.test_flow import PI0, write_lerobot
from tests.importers.test_openvla import STATS, TOY
from tests.importers.test_openvla import write as write_openvla
from tests.kits.data_helpers import write_foreign
from tests.kits.refusals import raises_naming
from tests.policies.vla.test_flow import policy_on, tabletop

OPTIONS = ["--sim.image", "flat_near", "--sim.image-size", "32", "--sim.families", "point"]


@pytest.fixture(autouse=True)
def toys_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(pi0.SIZES, ("toy", "toy"), PI0)
    for name, cfg in TOY.items():
        monkeypatch.setitem(config.TOWERS, name, cfg)


@pytest.fixture(scope="module")
def demos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("demos") / "point"
    code = main(["demos", "mujoco/tabletop", *OPTIONS, "--episodes", "4", "--out", str(out)])
    assert code == 0
    return out


@pytest.mark.parametrize("network", ["smolvla", "pi0"])
def test_a_policy_that_does_not_look_is_found_out(network: Any) -> None:
    policy = policy_on(network)
    found = effects(policy)
    assert set(found.pictures) == set(policy.roles.pictures) and min(*found.pictures.values(), found.words) > 1e-4
    vlm: Any = policy.net.trunk
    blind = vlm.model.connector.modality_projection.proj if network == "smolvla" else vlm.multi_modal_projector.linear
    for parameter in blind.parameters():
        parameter.data.zero_()
    with pytest.raises(DataError, match=r"another 'image_flat_near' moves what the policy says by 0\.0e\+00 of it"):
        effects(policy)


def test_a_policy_that_does_not_read_is_found_out() -> None:
    policy = policy_on("smolvla")
    policy.net.trunk.model.text_model.embed_tokens.weight.data.zero_()
    with pytest.raises(DataError, match="another 'instruction' moves"):
        effects(policy)


def test_recorded_actions_tell_a_trained_policy_from_another(demos: Path) -> None:
    """A policy that has learned some frames by heart passes on them; one that has not is refused."""
    policy, dataset = policy_on("smolvla"), read_dataset(demos)
    policy.control_dt_s = tabletop().control_dt_s
    found = labels(policy, dataset, 24)
    with pytest.raises(DataError, match="recorded actions of 24 frames are missed by"):
        check_labels(found, 0.05)
    data = load_chunks(dataset, list(policy.observation_spec), policy.horizon)
    obs = {key: torch.from_numpy(value) for key, value in data.obs.items()}
    outputs = policy.transforms.outputs[0]
    assert isinstance(outputs, Affine)
    unit = inverse(outputs)
    chunk = torch.from_numpy(data.chunks) * torch.tensor(unit.scale) + torch.tensor(unit.offset)
    valid, loss = torch.from_numpy(data.valid), clone_loss_of(policy)
    optimizer = torch.optim.Adam(policy.parameters(), lr=2e-3)
    torch.manual_seed(0)
    for _ in range(250):
        rows = torch.randint(len(chunk), (48,))
        ctx = policy.encode({key: value[rows] for key, value in obs.items()})
        noise, t = torch.randn(chunk[rows].shape), torch.rand(len(rows))
        optimizer.zero_grad()
        loss.loss(policy, ctx, chunk[rows], valid[rows], noise=noise, t=t).backward()
        optimizer.step()
    better = labels(policy, dataset, 24)
    assert better.error < 0.5 * found.error and better.error < better.shuffled
    check_labels(better._replace(shuffled=1.0), 0.3)
    with raises_naming(ConfigError, "frames", 100000, 2):
        labels(policy, dataset, 100_000)


def test_a_foreign_dataset_is_compared_as_ours_is(demos: Path, tmp_path: Path) -> None:
    """The policy reads the tasks of the frames, and sees the camera by its other name."""
    policy, ours = policy_on("smolvla"), read_dataset(demos)
    policy.control_dt_s = tabletop().control_dt_s
    known = {"images.top": "image_flat_near", "state": "state"}
    one = write_foreign(tmp_path / "one", ours, known)
    assert labels(policy, read_dataset(one), 8) == labels(policy, ours, 8)
    several = read_dataset(write_foreign(tmp_path / "two", ours, {**known, "images.wrist": "image_flat_near"}))
    with pytest.raises(ConfigError, match=r"its pictures are observation\.images\.top, observation\.images\.wrist"):
        labels(policy, several, 8)
    named = {"image_flat_near": "observation.images.wrist"}
    assert labels(policy, several, 8, columns=named) == labels(policy, ours, 8)
    other = write_foreign(tmp_path / "other", ours, known, says=lambda text: f"kindly {text}")
    with raises_naming(ConfigError, "word", "kindly"):
        labels(policy, read_dataset(other), 8)


def test_the_tolerance_is_kept() -> None:
    check_labels(ActionErrors(0.04, 0.1, 9), 0.05)
    for found in (ActionErrors(0.06, 0.5, 9), ActionErrors(0.04, 0.07, 9), ActionErrors(float("nan"), 0.5, 9)):
        with pytest.raises(DataError, match=r"expected 0\.05 at most"):
            check_labels(found, 0.05)


@pytest.mark.parametrize("kind", ["smolvla", "pi0"])
def test_the_command_stores_what_it_read(
    kind: str, tmp_path: Path, demos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, out = tmp_path / "theirs", tmp_path / "ours"
    write_lerobot(source, kind)
    command = [
        "import",
        "lerobot",
        str(source),
        "--sim",
        "mujoco/tabletop",
        *OPTIONS,
        "--vlm",
        str(source / "vlm"),
        "--cameras",
        "observation.images.top=image_flat_near",
        "observation.images.wrist=",
        "--out",
        str(out),
    ]
    assert main(command) == 0
    said = capsys.readouterr().out
    assert "parameters, fingerprint" in said and "another instruction by" in said and "unverified" in said
    origin = read_checkpoint(out).tree["import"]
    assert origin["layout"] == "lerobot" and origin["labels"] is None and origin["fingerprint"] in said
    policy = load_policy(out)
    assert policy.kind == kind and policy.horizon == 3
    assert main(["eval", str(out), "--sim", "mujoco/tabletop", "--episodes", "4", *OPTIONS]) == 0
    assert main(["inspect", str(out)]) == 0
    shown = capsys.readouterr().out
    assert kind in shown and "unverified" in shown
    assert main(command) == 2
    assert "expected the name of a new directory" in capsys.readouterr().err
    shutil.rmtree(out)
    theirs = write_foreign(
        tmp_path / "recorded", read_dataset(demos), {"images.top": "image_flat_near", "state": "state"}
    )
    several = {"images.top": "image_flat_near", "images.side": "image_flat_near", "state": "state"}
    for recorded in (demos, theirs, write_foreign(tmp_path / "several", read_dataset(demos), several)):
        assert main([*command, "--check-data", str(recorded), "--frames", "16"]) == 2
        # its statistics are made up: the gripper that was recorded shut is beyond all that it can say
        assert "lie outside, -1 to -1; expected 2% at most" in capsys.readouterr().err
        assert not out.exists()


def test_whose_statistics_were_used_is_said_and_stored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A fine-tune has statistics of one dataset, which need not be named."""
    source, out = tmp_path / "theirs", tmp_path / "ours"
    write_openvla(source)
    (source / "dataset_statistics.json").write_text(json.dumps({"mine": STATS["toy_no_noops"]}))
    (source / "lora_adapter").mkdir()
    command = ["import", "openvla", str(source), "--sim", "mujoco/tabletop", *OPTIONS, "--out", str(out)]
    with pytest.warns(UserWarning, match="lora_adapter is not read"):
        assert main(command) == 0
    assert "statistics of mine" in capsys.readouterr().out
    assert read_checkpoint(out).tree["import"]["key"] == "mine"
    assert main([*command, "--horizon", "-1"]) == 2
    assert "--horizon is -1: expected 0 or more" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("layout", "settings", "message"),
    [
        ("openvla", {"vlm": "words"}, "vlm is 'words' beside layout openvla: expected it of lerobot and openpi"),
        ("openvla", {"state": 19}, "state is 19 beside layout openvla: expected it of openvla-oft and vlm and vlm-oft"),
        ("openvla", {"stats": "demos"}, "stats is 'demos' beside layout openvla: expected it of vlm and vlm-oft"),
        ("lerobot", {"key": "bridge"}, "key is 'bridge' beside layout lerobot"),
        ("openpi", {"template": "{task}"}, "template is '{task}' beside layout openpi"),
        (
            "openvla-oft",
            {"cameras": {"front": "a", "wrist": "b"}},
            "cameras are front, wrist beside layout openvla-oft",
        ),
        ("openvla-oft", {"horizon": -1}, "horizon is -1: expected 0 or more"),
        ("vlm", {"state": -3}, "state is -3: expected 0 or more"),
        ("opnvla", {}, "layout 'opnvla' is unknown: did you mean 'openvla'"),
    ],
)
def test_settings_that_would_be_passed_over_are_refused(layout: Any, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        check_settings(layout, ImportCfg(**settings))
    check_settings("openvla-oft", ImportCfg(key="mine", cameras={"front": "a"}, horizon=4, state=19))


def test_what_is_subtly_wrong_of_ours_is_refused(tmp_path: Path) -> None:
    """A stored policy whose cameras, statistics or tokenizer were exchanged, or with one weight altered."""
    from robotrl.run.policy_checkpoint import policy_from_tree, policy_tree

    source = tmp_path / "theirs"
    write_lerobot(source, "smolvla")
    sim = robotrl.make_sim("mujoco/tabletop", num_envs=1, seed=0, image=("flat_near", "flat_top"), image_size=32)
    specs = {key: sim.observation_spec[key] for key in ("image_flat_near", "image_flat_top", "instruction", "state")}
    cameras = {"observation.images.top": "image_flat_top", "observation.images.wrist": "image_flat_near"}
    policy = lerobot.load_lerobot(source, specs, sim.action_spec, vlm=source / "vlm", cameras=cameras)
    policy.control_dt_s = 0.05
    tree = policy_tree(policy)
    assert policy_from_tree(tree, "here").kind == "smolvla"

    def changed(**fields: Any) -> dict[str, Any]:
        description = json.loads(json.dumps(tree["description"]))
        description["cfg"].update(fields)
        return {**tree, "description": description}

    other = json.loads(tree["description"]["cfg"]["tokenizer"])
    words = sorted((word for word in other["model"]["vocab"] if len(word) > 3), key=len)[-2:]
    vocab = other["model"]["vocab"]
    vocab[words[0]], vocab[words[1]] = vocab[words[1]], vocab[words[0]]
    weights = {name: x.clone() for name, x in tree["weights"].items()}
    name = next(name for name in weights if "lm_expert" in name and "q_proj" in name)
    weights[name][0, 0] += 1.0
    robot = json.loads(json.dumps(tree["description"]))
    robot["transforms"]["outputs"][0]["offset"][0] += 0.01
    for broken in (
        changed(cameras=["image_flat_near", "image_flat_top"]),
        changed(tokenizer=json.dumps(other)),
        {**tree, "weights": weights},
        {**tree, "description": robot},
    ):
        with pytest.raises(DataError, match=r"fingerprint action differs|description .* is not the one that was saved"):
            policy_from_tree(broken, "here")
        # as in checkpoints of before
        before = {key: value for key, value in broken.items() if key != "description_sha256"}
        with pytest.raises(DataError, match=r"fingerprint action differs|tables that the policy makes"):
            policy_from_tree(before, "here")
    del weights[name]
    with pytest.raises(DataError, match="lacks weights"):
        policy_from_tree({**tree, "weights": weights}, "here")
