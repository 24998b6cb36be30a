"""Vision-language models that learn to say actions: read whole, held against their own code, refused, cloned."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from vlm_kit import BINS, CONFIGS, PLAIN, SIDE, write

import robotrl
from robotrl.algos.footprint import Load, adapt_alike, described, footprint, without_memory
from robotrl.cli import main
from robotrl.config import LoraCfg
from robotrl.data.reader import read_dataset
from robotrl.deploy.export import export
from robotrl.deploy.runtime import Controller
from robotrl.errors import CapabilityError, ConfigError, DataError
from robotrl.fn.clone import clone_loss_of
from robotrl.importers.examine import effects
from robotrl.importers.vlm import check_own, load_vlm
from robotrl.load import load_policy, policy_from_tree, policy_tree, probe
from robotrl.policies.recompute import recompute
from robotrl.policies.vla import families
from robotrl.spec import HasEye, HasReading, HasTokens, visible

OPTIONS = ["image=flat_front", f"image_size={SIDE}", "families=point", "limit_s=1"]


@pytest.fixture(scope="module")
def sim() -> Any:
    return robotrl.make_sim(
        "mujoco/tabletop", num_envs=4, seed=0, image="flat_front", image_size=SIDE, families="point"
    )


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Directories by family, each written once."""
    root = tmp_path_factory.mktemp("vlm")

    def directory(family: str) -> Path:
        if not (root / family).exists():
            write(root / family, family)
        return root / family

    return directory


@pytest.fixture
def directory(published: Callable[[str], Path], tmp_path: Path) -> Path:
    return shutil.copytree(published("llava"), tmp_path / "toy")


@pytest.fixture(scope="module")
def demos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("demos") / "point"
    told = ["--options", *OPTIONS, "--episodes", "4", "--noise", "0.3", "--out", str(out)]
    assert main(["demos", "mujoco/tabletop", *told]) == 0
    return out


def load(path: Path, sim: Any, **options: Any) -> Any:
    return load_vlm(path, visible(sim), sim.action_spec, **options)


def parallel(path: Path, sim: Any, **options: Any) -> Any:
    return load(path, sim, decoding="parallel", horizon=2, **options)


# what is read


@pytest.mark.parametrize("family", CONFIGS)
def test_every_family_sees_reads_and_says_as_its_own_code_does(family: str, published: Any, sim: Any) -> None:
    """`load_vlm` refuses it otherwise; then one token after the other, from the cache and in one pass, agree."""
    policy = load(published(family), sim)
    assert isinstance(policy, HasTokens) and isinstance(policy, HasReading) and isinstance(policy, HasEye)
    found = effects(policy)
    assert min(*found.pictures.values(), found.words) > 1e-3
    obs = sim.reset(0)
    with torch.no_grad():
        ctx = policy.encode(obs)
        said = policy.sample_tokens(ctx, torch.Generator().manual_seed(0), "sample")
        at_once = policy.token_logits(ctx, said)
        step: list[Tensor] = []

        def keep(logits: Tensor) -> Tensor:
            step.append(logits)
            return said.flatten(1)[:, len(step) - 1 : len(step)]

        policy.net.sample(ctx, said[0].numel(), keep)
    assert torch.cat(step, dim=1) == pytest.approx(at_once.flatten(1, 2), abs=2e-5)
    eye, sight = policy.eye(), policy.net.sight(obs["image_flat_front"])
    assert torch.allclose(eye(obs), sight.mean(dim=1), atol=1e-6)


@pytest.mark.parametrize("family", CONFIGS)
def test_a_row_says_the_same_in_any_batch_and_when_loaded_again(family: str, published: Any, sim: Any) -> None:
    policy = parallel(published(family), sim)
    again = policy_from_tree(policy_tree(policy), "here")
    # instructions of several lengths, which leave gaps
    obs = sim.reset(0)
    with torch.no_grad():
        together = again.token_logits(again.encode(obs), torch.zeros((4, 2, 5), dtype=torch.int64))
        alone = {key: x[1:2] for key, x in obs.items()}
        one = policy.token_logits(policy.encode(alone), torch.zeros((1, 2, 5), dtype=torch.int64))
    assert torch.allclose(together[1:2], one, atol=2e-5)
    assert torch.equal(probe(policy), probe(again))


def test_weights_are_those_of_the_directory(published: Any, sim: Any) -> None:
    model = write(published("llava").parent / "again", "llava")
    policy = load(published("llava"), sim)
    for name, value in model.state_dict().items():
        assert torch.equal(policy.net.vlm.state_dict()[name], value), name


def test_actions_are_the_last_ids_that_were_not_added_later(published: Any, sim: Any) -> None:
    policy = load(published("llava"), sim)
    ctx = policy.encode(sim.reset(0))
    said = torch.tensor([[[0, BINS - 1, 3, 4, 5]]]).expand(4, -1, -1)
    seen: list[Tensor] = []
    embed = policy.net.vlm.get_input_embeddings()
    hook = embed.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    policy.token_logits(ctx, said)
    hook.remove()
    # a larger action has a smaller id
    assert seen[0][0].tolist() == [PLAIN - 1, PLAIN - BINS, PLAIN - 4, PLAIN - 5]


def test_statistics_of_a_dataset_normalise(demos: Path, published: Any, sim: Any) -> None:
    """[-1, 1] is what the robot did from 1 to 99 %; the measured state gets mean 0 and deviation 1."""
    dataset = read_dataset(demos)
    policy = parallel(published("llava"), sim, state=19, stats=dataset)
    stats = dataset.stats["action"]
    ends = policy.to_actions(torch.tensor([[[-1.0] * 5], [[1.0] * 5]]))[:, 0]
    moved = np.asarray(stats["q99"] - stats["q01"]).reshape(-1) > 1e-2
    assert moved.any()
    for end, name in zip(ends, ("q01", "q99"), strict=True):
        expected = np.clip(np.asarray(stats[name]).reshape(-1), sim.action_spec.low, sim.action_spec.high)
        assert end.numpy()[moved] == pytest.approx(expected[moved], abs=1e-5)
    seen: list[Tensor] = []
    policy.net.proprio_projector.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    state = torch.from_numpy(np.asarray(dataset.frames("observation.state"), np.float32))
    obs = {key: x[:1].expand(len(state), *x.shape[1:]) for key, x in sim.reset(0).items()}
    policy.encode({**obs, "state": state})
    assert seen[0].mean(dim=0).abs().max() < 1e-3


def test_pictures_of_another_size_are_fitted(published: Any, sim: Any) -> None:
    small = robotrl.make_sim("mujoco/tabletop", num_envs=1, seed=0, image="flat_front", image_size=24)
    for family, side in (("llava", SIDE), ("qwen2_vl", 32)):
        policy = load(published(family), small)
        assert policy.net.cfg.image == side
        assert policy.net.pixels(small.reset(0)["image_flat_front"]).shape == (1, 3, side, side)


def test_the_loss_of_one_batch_falls(published: Any, sim: Any) -> None:
    policy = parallel(published("smolvlm"), sim)
    obs = sim.reset(0)
    chunk = torch.linspace(-0.9, 0.9, 40).view(4, 2, 5)
    valid = torch.ones(4, 2, dtype=torch.bool)
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-3)
    losses: list[float] = []
    for _ in range(60):
        loss = clone_loss_of(policy).loss(policy, policy.encode(obs), chunk, valid)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.1 * losses[0]


# what is refused


def change(path: Path, **values: Any) -> None:
    data = json.loads(path.read_text())
    path.write_text(json.dumps({**data, **values}))


def tensors(edit: Callable[[dict[str, Tensor]], object]) -> Callable[[Path], None]:
    def apply(path: Path) -> None:
        weights = load_file(path / "model.safetensors")
        edit(weights)
        save_file(weights, path / "model.safetensors", {"format": "pt"})

    return apply


def cut(weights: dict[str, Tensor]) -> None:
    name = next(name for name in weights if name.endswith("gate_proj.weight"))
    weights[name] = weights[name][:-1].contiguous()


def shrink(path: Path) -> None:
    made = json.loads((path / "config.json").read_text())
    text = {**made["text_config"], "vocab_size": PLAIN}
    change(path / "config.json", text_config=text)


REFUSED: dict[str, tuple[Callable[[Path], object], str]] = {
    "a tensor missing": (
        tensors(lambda w: w.pop(next(name for name in w if name.endswith("gate_proj.weight")))),
        "lacks weights: .*gate_proj.weight",
    ),
    "a tensor too many": (tensors(lambda w: w.update(surplus=torch.zeros(1))), "has unknown weights: surplus"),
    "a tensor of another shape": (tensors(cut), r"gate_proj.weight' has shape \(127, 64\): expected \(128, 64\)"),
    "weights cut short": (
        lambda p: (p / "model.safetensors").write_bytes((p / "model.safetensors").read_bytes()[:-9]),
        "the weights cannot be read",
    ),
    "no weights": (lambda p: (p / "model.safetensors").unlink(), "the weights cannot be read"),
    "another family": (
        lambda p: change(p / "config.json", model_type="llava_next"),
        "model_type 'llava_next' is unknown: did you mean 'llava'",
    ),
    "a longer tokenizer": (shrink, f"tokens: expected {PLAIN} at most"),
    "no tokenizer": (lambda p: (p / "tokenizer.json").unlink(), "tokenizer.json cannot be read"),
    "no pixels": (lambda p: (p / "preprocessor_config.json").unlink(), "has no image_mean"),
    "pixels of one number": (
        lambda p: change(p / "preprocessor_config.json", image_mean=[0.5]),
        "expected three numbers each",
    ),
    "other pixels": (
        lambda p: change(p / "preprocessor_config.json", rescale_factor=1.0),
        "expected pictures as shares of 255",
    ),
    "no JSON": (lambda p: (p / "config.json").write_text("{"), "config.json cannot be read"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_directory_that_is_off_is_refused(what: str, directory: Path, sim: Any) -> None:
    spoil, message = REFUSED[what]
    spoil(directory)
    with pytest.raises(DataError, match=message):
        load(directory, sim)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"state": 19}, "state is 19 and stats is not given"),
        ({"template": "{task}"}, "expected {picture} in it once, before the words"),
        ({"template": "{task} {picture}"}, "expected {picture} in it once, before the words"),
        ({"template": "{picture} {picture} {task}"}, "expected {picture} in it once, before the words"),
        ({"template": "{picture} rare3 {task}"}, f"uses id {PLAIN - BINS + 3}: expected none of the last {BINS}"),
        ({"template": "{picture}"}, "expected {task} in it, once"),
        ({"bins": PLAIN - 1}, "uses id"),
    ],
)
def test_settings_that_do_not_fit_are_refused(options: dict[str, Any], message: str, published: Any, sim: Any) -> None:
    with pytest.raises(ConfigError, match=message.replace("{", r"\{").replace("}", r"\}")):
        load(published("llava"), sim, **options)


def test_a_state_of_another_width_is_refused(demos: Path, published: Any, sim: Any) -> None:
    with pytest.raises(ConfigError, match="have 19 numbers: expected 7, the width of the network's measured state"):
        parallel(published("llava"), sim, state=7, stats=read_dataset(demos))


WRONG: dict[str, tuple[str, dict[str, Any]]] = {
    "positions of a line": ("qwen2_vl", {"axes": None}),
    "a prefix read one way": ("paligemma", {"together": "nothing"}),
    "a picture read one way": ("gemma3", {"together": "nothing"}),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_family_that_is_used_otherwise_than_it_works_is_found_out(
    what: str, published: Any, sim: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    family, wrong = WRONG[what]
    known = families.FAMILIES[family]
    monkeypatch.setitem(families.FAMILIES, family, known._replace(**wrong))
    with pytest.raises(DataError, match=f"uses {family} otherwise than it is used here"):
        load(published(family), sim)


def test_an_altered_weight_is_found_out(published: Any, sim: Any) -> None:
    """Of the copy that is asked: what is seen through `families` is then not what the model's own code sees."""
    policy = load(published("llava"), sim)
    check_own(policy, "here")
    own = policy.net.vlm.forward

    def other(**inputs: Any) -> Any:
        return own(**{**inputs, "pixel_values": -inputs["pixel_values"]})

    policy.net.vlm.forward = other
    with pytest.raises(DataError, match="here: the first token's logits are off by"):
        check_own(policy, "here")


# memory


@pytest.mark.parametrize("family", ["llava", "smolvlm"])
def test_memory_is_estimated_beforehand(family: str, published: Any, sim: Any) -> None:
    """Without weights and without pictures, adapted, with blocks computed again, in 16 bits."""
    policy = parallel(published(family), sim)
    with without_memory("vlm"):
        plain, adapted = described(policy.to_json()), described(policy.to_json())
        whole = footprint(plain, Load(16), policy.observation_spec)
        adapt_alike(adapted, LoraCfg(rank=4))
        recompute(adapted)
        small = footprint(adapted, Load(16, bf16=True), policy.observation_spec)
    assert whole.weights >= sum(x.nbytes for x in policy.parameters())
    assert small.update < 0.75 * whole.update and small.optimiser < 0.2 * whole.optimiser


def test_of_one_whose_eyes_split_by_data_memory_is_not_known(published: Any, sim: Any) -> None:
    policy = parallel(published("qwen2_vl"), sim)
    with without_memory("vlm"):
        made = described(policy.to_json())
        with pytest.raises(CapabilityError, match="memory cannot be estimated: the eyes of qwen2_vl"):
            footprint(made, Load(16), policy.observation_spec)
        with pytest.raises(CapabilityError, match="memory cannot be estimated"):
            adapt_alike(made, LoraCfg(rank=4))


@pytest.mark.parametrize("family", ["smolvlm", "gemma3", "qwen2_5_vl"])
def test_blocks_may_be_computed_again(family: str, published: Any, sim: Any) -> None:
    policy = parallel(published(family), sim)
    obs = sim.reset(0)

    def gradients() -> dict[str, Tensor]:
        policy.zero_grad()
        policy.token_logits(policy.encode(obs), torch.zeros((4, 2, 5), dtype=torch.int64)).square().mean().backward()
        return {key: x.grad for key, x in policy.named_parameters() if x.grad is not None}

    before = gradients()
    assert recompute(policy) == 4
    after = gradients()
    assert before and all(torch.equal(before[key], after[key]) for key in before)


# what becomes of it


def observations(policy: Any, sim: Any) -> dict[str, np.ndarray]:
    obs = {key: np.concatenate([np.asarray(sim.reset(0)[key])] * 250) for key in policy.observation_spec}
    drawn = np.random.default_rng(0).integers(0, 256, obs["image_flat_front"].shape)
    return {**obs, "image_flat_front": drawn.astype(np.uint8)}


def test_it_leaves_as_a_bundle(published: Any, sim: Any, tmp_path: Path) -> None:
    policy = parallel(published("smolvlm"), sim)
    obs = observations(policy, sim)
    export(policy, tmp_path / "bundle", observations=obs, samples=1000, control_dt_s=sim.control_dt_s)
    controller = Controller.load(tmp_path / "bundle")
    said = controller.step({key: x[0] for key, x in obs.items()})
    first = {key: torch.from_numpy(x[:1]) for key, x in obs.items()}
    assert said == pytest.approx(policy.act(first, mode="mean").chunk[0, 0].numpy(), abs=1e-5)


def test_one_whose_eyes_split_by_data_does_not_leave(published: Any, sim: Any, tmp_path: Path) -> None:
    policy = parallel(published("qwen2_5_vl"), sim)
    with pytest.raises(CapabilityError, match="the eyes of qwen2_5_vl take pictures apart by numbers"):
        export(policy, tmp_path / "bundle", observations=observations(policy, sim), control_dt_s=sim.control_dt_s)
    assert not (tmp_path / "bundle").exists()


def test_it_is_imported_cloned_and_fine_tuned(
    published: Any, demos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The commands of the page at toy size: import, clone, adapters, GRPO."""
    told = ["--sim", "mujoco/tabletop", "--options", *OPTIONS, "--horizon", "2", "--state", "19", "--stats", str(demos)]
    assert main(["import", "vlm-oft", str(published("smolvlm")), *told, "--out", str(tmp_path / "vlm")]) == 0
    assert "says no actions yet" in capsys.readouterr().out
    few = ["--sim.options", *OPTIONS, "--sim.num-envs", "4", "--evaluation.every", "0"]
    run = ["--init-from", str(tmp_path / "vlm"), "--dataset", str(demos), "--run-dir", str(tmp_path / "clone")]
    small = ["--algo.updates", "4", "--algo.updates-per-iteration", "2", "--algo.batch", "4", "--algo.symmetries"]
    lora = ["--lora.rank", "2", "--lora.heads", "action_queries", "proprio_projector"]
    assert main(["train", "tabletop-bc-vlm", *few, *run, *small, *lora]) == 0
    clone = load_policy(tmp_path / "clone")
    before = load_policy(tmp_path / "vlm")
    assert not torch.equal(clone.net.action_queries, before.net.action_queries)
    run = ["--init-from", str(tmp_path / "clone"), "--run-dir", str(tmp_path / "tuned")]
    small = ["--algo.iterations", "1", "--algo.groups", "1", "--algo.group-size", "2", "--algo.tries", "1"]
    judged = ["--algo.progress", "sight", "--algo.keep-by", "reward", "--algo.minibatch", "8", "--algo.no-bf16"]
    assert main(["train", "srpo", *few, *run, *small, *judged]) == 0
    log = [json.loads(line) for line in (tmp_path / "tuned" / "scalars.jsonl").read_text().splitlines()]
    assert log[-1]["groups_drawn"] == 2
