"""Vision-language models that learn to say actions: read whole, held against their own code, refused, cloned."""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import robotrl
from robotrl.cli.main import main
from robotrl.config import LoraCfg
from robotrl.datasets.reader import read_dataset
from robotrl.deploy.export import export
from robotrl.deploy.runtime import Controller
from robotrl.errors import CapabilityError, ConfigError, DataError
from robotrl.fn.bc_loss import clone_loss_of
from robotrl.importers.examine import effects
from robotrl.importers.vlm.directory import check_own, load_vlm
from robotrl.memory_estimate.estimate import Load, described, estimate_memory, on_meta_device, stand_in_adapters
from robotrl.policies.networks.activation_checkpointing import recompute
from robotrl.policies.vla.networks import families
from robotrl.run.policy_checkpoint import load_policy, policy_from_tree, policy_tree, probe
from robotrl.run.token_fingerprint import check_stored_tokens
from robotrl.spec import HasTextFeatures, HasTokens, HasVisionEncoder, visible
from tests.kits.commands import TABLETOP_BC_VLM
from tests.kits.vlm_kit import BINS, CONFIGS, PLAIN, SIDE, write

OPTIONS = [
    *("--sim.image", "flat_front", "--sim.image-size", str(SIDE)),
    *("--sim.families", "point", "--sim.limit-s", "1"),
]


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
    told = [*OPTIONS, "--episodes", "4", "--noise", "0.3", "--out", str(out)]
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
    assert (
        isinstance(policy, HasTokens) and isinstance(policy, HasTextFeatures) and isinstance(policy, HasVisionEncoder)
    )
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
    vision_encoder, features = policy.vision_encoder(), policy.net.encode_images(obs["image_flat_front"])
    assert torch.allclose(vision_encoder(obs), features.mean(dim=1), atol=1e-6)


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


def adapter(path: Path, name: str) -> None:
    """Beside a base which itself is not whole: `transformers` says nothing of that any more."""
    told = {"peft_type": "LORA", "r": 2, "lora_alpha": 16, "target_modules": ["q_proj"], "bias": "none"}
    weights = load_file(path / "model.safetensors")
    queries = [key for key in weights if key.endswith("q_proj.weight")]
    (path / "adapter_config.json").write_text(json.dumps({**told, "base_model_name_or_path": "x/y"}))
    narrow: dict[str, Tensor] = {}
    for key in queries:
        rows, columns = weights[key].shape
        inner = f"base_model.model.{key.removesuffix('.weight')}"
        narrow |= {f"{inner}.lora_A.weight": torch.ones(2, columns), f"{inner}.lora_B.weight": torch.ones(rows, 2)}
    save_file(narrow, path / "adapter_model.safetensors")
    tensors(lambda w: w.pop(next(key for key in w if key.endswith("gate_proj.weight"))))(path)
    for file in path.glob("adapter_*"):
        if not file.name.startswith(name):
            file.unlink()


def two_files(path: Path, edit: Callable[[dict[str, Tensor], dict[str, Tensor], dict[str, str]], object]) -> None:
    """The weights in two files with an index, both changed before they are written."""
    weights = load_file(path / "model.safetensors")
    names = sorted(weights)
    one, two = ({name: weights[name] for name in names[start::2]} for start in (0, 1))
    files = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
    index = {name: files[number] for number, part in enumerate((one, two)) for name in part}
    edit(one, two, index)
    for file, part in zip(files, (one, two), strict=True):
        save_file(part, path / file, {"format": "pt"})
    (path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    (path / "model.safetensors").unlink()


def twice(one: dict[str, Tensor], two: dict[str, Tensor], _: dict[str, str]) -> None:
    name = next(iter(one))
    two[name] = torch.zeros_like(one[name])


def elsewhere(one: dict[str, Tensor], two: dict[str, Tensor], _: dict[str, str]) -> None:
    name = next(iter(one))
    two[name] = one.pop(name)


def lost(_: dict[str, Tensor], __: dict[str, Tensor], index: dict[str, str]) -> None:
    index["surplus"] = "model-00001-of-00002.safetensors"


def beside(path: Path) -> None:
    shutil.copyfile(path / "model.safetensors", path / "kept")
    two_files(path, lambda *_: None)
    (path / "kept").rename(path / "model.safetensors")


def without_a_file(path: Path) -> None:
    two_files(path, lambda *_: None)
    (path / "model-00002-of-00002.safetensors").unlink()


def tie(path: Path) -> None:
    made = json.loads((path / "config.json").read_text())
    text = {**made["text_config"], "tie_word_embeddings": True}
    change(path / "config.json", text_config=text, tie_word_embeddings=True)


def infinite(weights: dict[str, Tensor]) -> None:
    weights[next(name for name in weights if name.endswith("gate_proj.weight"))][0, 0] = torch.inf


def of_text(**values: Any) -> Callable[[Path], None]:
    def apply(path: Path) -> None:
        made = json.loads((path / "config.json").read_text())
        change(path / "config.json", text_config={**made["text_config"], **values})

    return apply


def of_pixels(**values: Any) -> Callable[[Path], None]:
    return lambda path: change(path / "preprocessor_config.json", **values)


def of_config(**values: Any) -> Callable[[Path], None]:
    return lambda path: change(path / "config.json", **values)


def of_tokenizer(edit: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    def apply(path: Path) -> None:
        data = json.loads((path / "tokenizer.json").read_text())
        edit(data)
        (path / "tokenizer.json").write_text(json.dumps(data))

    return apply


def renamed(*words: str) -> Callable[[Path], None]:
    """A tokenizer that has other words in their places."""

    def apply(data: dict[str, Any]) -> None:
        vocabulary = data["model"]["vocab"]
        for word in words:
            vocabulary[f"zz{word}"] = vocabulary.pop(word)

    return of_tokenizer(apply)


def one_word(data: dict[str, Any]) -> None:
    """Reads two words as one, none of them unknown."""
    data["normalizer"] = {"type": "Replace", "pattern": {"String": "blue"}, "content": "red"}


def without_marks(data: dict[str, Any]) -> None:
    data["added_tokens"] = [token for token in data["added_tokens"] if token["content"] in ("<bos>", "<image>")]


def without_deviations(path: Path) -> None:
    said = json.loads((path / "preprocessor_config.json").read_text())
    (path / "preprocessor_config.json").write_text(json.dumps({k: x for k, x in said.items() if k != "image_std"}))


def nested(**values: Any) -> Callable[[Path], None]:
    """A second file, as newer versions write it, that says what the first one does but for some values."""

    def apply(path: Path) -> None:
        said = json.loads((path / "preprocessor_config.json").read_text())
        (path / "processor_config.json").write_text(json.dumps({"image_processor": {**said, **values}}))

    return apply


def no_object(path: Path) -> None:
    (path / "processor_config.json").write_text(json.dumps({"image_processor": None}))


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
        "image_mean is .0.5.: expected three numbers",
    ),
    "other pixels": (
        lambda p: change(p / "preprocessor_config.json", rescale_factor=1.0),
        "expected 0.003922, pictures as shares of 255",
    ),
    "no JSON": (lambda p: (p / "config.json").write_text("{"), "config.json cannot be read"),
    "an adapter beside the base": (lambda p: adapter(p, "adapter"), "adapter_config.json is of an adapter, .* merge"),
    "an adapter's config": (lambda p: adapter(p, "adapter_config"), "adapter_config.json is of an adapter, .* merge"),
    "an adapter's weights": (
        lambda p: adapter(p, "adapter_model"),
        "adapter_model.safetensors is of an adapter, .* merge",
    ),
    "a tensor in two files": (lambda p: two_files(p, twice), "is in .*00001-of.* and .*00002-of.*: expected it in one"),
    "a tensor in another file": (lambda p: two_files(p, elsewhere), "00002-of-00002.safetensors: .* not listed there"),
    "an index of a lost tensor": (lambda p: two_files(p, lost), "'surplus' is in model-00001-of-00002.*: expected it"),
    "an index of a lost file": (without_a_file, "00002-of-00002.safetensors cannot be read"),
    "a file beside an index": (beside, "has both model.safetensors and model.safetensors.index.json: expected one"),
    "a file outside": (
        lambda p: two_files(p, lambda _, __, index: index.update(x="../other.safetensors")),
        "weight_map of x is '../other.safetensors': expected the name of a file beside it",
    ),
    "weights of another name": (of_config(transformers_weights="other.safetensors"), "transformers_weights is 'other"),
    "a head that is to be the embedding": (tie, "'lm_head.weight' differs from 'model.language_model.embed_tokens.wei"),
    "a number that is infinite": (tensors(infinite), "gate_proj.weight' has numbers that are not finite"),
    "pixels not as shares": (of_pixels(do_rescale=False), "do_rescale is False: expected true"),
    "pixels not normalised": (of_pixels(do_normalize=False), "do_normalize is False: expected true"),
    "pixels by no factor": (of_pixels(rescale_factor=None), "rescale_factor is None: expected 0.003922"),
    "pixels of a number": (of_pixels(image_mean=0.5), "image_mean is 0.5: expected three numbers"),
    "pixels of null": (of_pixels(image_mean=None), "image_mean is None: expected three numbers"),
    "pixels of NaN": (of_pixels(image_std=[float("nan")] * 3), "image_std is .*: expected three numbers"),
    "pixels without deviations": (without_deviations, "image_std is None: expected three numbers"),
    "pixels of another file": (nested(image_mean=[0.1] * 3), "image_processor: image_mean is .*0.1.*: expected .*0.4"),
    "shares of another file": (nested(do_rescale=False), "image_processor: do_rescale is False"),
    "no object of pixels": (no_object, "image_processor is None: expected an object"),
    "a kind that is no text": (of_config(model_type=["llava"]), "model_type .* is unknown"),
    "a config that is a list": (of_config(text_config=[1]), "config.json: config of a llava: .*'text_config'"),
    "a width in words": (of_text(hidden_size="64"), "'hidden_size' expected int, got str"),
    "a width that heads do not divide": (of_text(hidden_size=65), r"hidden size \(65\) is not a multiple"),
    "a width that others do not have": (of_text(intermediate_size=-8), "cannot be made: expected sizes that fit"),
    "an unknown language model": (of_text(model_type="nonsense"), "config.json: .*nonsense"),
    "a layer that eyes do not have": (
        of_config(vision_feature_layer=-9),
        "vision_feature_layer is -9: .* from -3 to 2",
    ),
    "a picture's token that is a word": (
        of_config(image_token_id=7, image_token_index=7),
        "image_token_id is 7, which is 'user' in tokenizer.json: expected a token that was added",
    ),
    "words that are unknown": (renamed("red", "push"), r"makes \[0\] of the sim's word '\w+': expected known tokens"),
    "words that are one": (of_tokenizer(one_word), "of the sim's words '(red|blue)' and '(red|blue)': expected ids of"),
    "a prompt that is unknown": (renamed("robot"), "does not know all of the prompt 'USER: .*robot"),
    "an end that is no id": (of_text(eos_token_id=[]), r"eos_token_id is \[\]: expected an id"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_directory_that_is_off_is_refused(what: str, directory: Path, sim: Any) -> None:
    spoil, message = REFUSED[what]
    spoil(directory)
    with pytest.raises(DataError, match=message):
        load(directory, sim)


@pytest.mark.parametrize("family", ["smolvlm", "internvl", "gemma3", "qwen2_vl"])
def test_a_mark_of_the_chat_that_is_no_token_is_refused(family: str, published: Any, tmp_path: Path, sim: Any) -> None:
    directory = shutil.copytree(published(family), tmp_path / "toy")
    of_tokenizer(without_marks)(directory)
    with pytest.raises(
        DataError, match=r"tokenizer.json makes \[.*\] of '<\S+>', a mark of the prompt .*: expected one"
    ):
        load(directory, sim)


def test_weights_in_two_files_and_pixels_said_twice_are_those(directory: Path, published: Any, sim: Any) -> None:
    two_files(directory, lambda *_: None)
    nested()(directory)
    one, other = load(directory, sim), load(published("llava"), sim)
    assert one.net.cfg == other.net.cfg
    assert all(torch.equal(x, y) for x, y in zip(one.parameters(), other.parameters(), strict=True))


def test_a_head_that_is_the_embedding_may_be_stored_beside_it(directory: Path, sim: Any) -> None:
    def same(weights: dict[str, Tensor]) -> None:
        embedding = next(x for name, x in weights.items() if name.endswith("embed_tokens.weight"))
        head = next(name for name in weights if name.endswith("lm_head.weight"))
        weights[head] = embedding.clone()

    tie(directory)
    tensors(same)(directory)
    policy = load(directory, sim)
    assert policy.net.vlm.get_output_embeddings().weight is policy.net.vlm.get_input_embeddings().weight
    again = policy_from_tree(policy_tree(policy), "here")
    assert torch.equal(probe(policy), probe(again))


def test_a_matrix_of_zeros_is_told(directory: Path, sim: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load(directory, sim)
    tensors(lambda w: [x.zero_() for name, x in w.items() if "language_model" in name and "layers.1." in name])(
        directory
    )
    with pytest.warns(UserWarning, match=r"all numbers are 0 of .*model\.language_model\.layers\.1\..* and 4 more"):
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


def test_settings_and_statistics_that_hardly_show_are_noticed_when_it_is_loaded(
    demos: Path, published: Any, sim: Any
) -> None:
    policy = parallel(published("llava"), sim, state=19, stats=read_dataset(demos))
    tree = policy_tree(policy)

    def edited(edit: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
        description = json.loads(json.dumps(tree["description"]))
        edit(description)
        return {**tree, "description": description}

    def scale(description: dict[str, Any]) -> None:
        state = description["transforms"]["inputs"][0]
        state["scale"] = [1.05 * x for x in state["scale"]]

    edits: list[Callable[[dict[str, Any]], object]] = [
        scale,
        lambda d: d["cfg"]["net"]["config"]["text_config"]["rope_parameters"].update(rope_theta=5e5),
        lambda d: d["cfg"]["net"].update(mean=[0.41, 0.5, 0.6]),
    ]
    for edit in edits:
        with pytest.raises(DataError, match=r"here: the policy's description .* is not the one that was saved"):
            policy_from_tree(edited(edit), "here")
        # the sum apart, what it says tells
        bare = {key: value for key, value in edited(edit).items() if key != "description_sha256"}
        with pytest.raises(DataError, match=r"here: the policy's fingerprint (logits differ|action differs)"):
            policy_from_tree(bare, "here")


def test_one_in_16_bits_is_stored_and_loaded_in_32(published: Any, sim: Any) -> None:
    """Its likeliest bins may be others then: only its logits are held against those stored."""
    policy = load(published("llava"), sim).to(torch.bfloat16)
    fingerprint = policy_tree(policy)["fingerprint"]
    assert fingerprint["half"]
    wide = load(published("llava"), sim).to(torch.bfloat16).float()
    check_stored_tokens(wide, fingerprint, True, "here")
    with torch.no_grad():
        for weight in wide.parameters():
            weight.mul_(1 + 0.05 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(0)))
    with pytest.raises(DataError, match="here: the policy's fingerprint logits differ"):
        check_stored_tokens(wide, fingerprint, True, "here")


# memory


@pytest.mark.parametrize("family", ["llava", "smolvlm"])
def test_memory_is_estimated_beforehand(family: str, published: Any, sim: Any) -> None:
    """Without weights and without pictures, adapted, with blocks computed again, in 16 bits."""
    policy = parallel(published(family), sim)
    with on_meta_device("vlm"):
        plain, adapted = described(policy.to_json()), described(policy.to_json())
        whole = estimate_memory(plain, Load(16), policy.observation_spec)
        stand_in_adapters(adapted, LoraCfg(rank=4))
        recompute(adapted)
        small = estimate_memory(adapted, Load(16, bf16=True), policy.observation_spec)
    assert whole.weights >= sum(x.nbytes for x in policy.parameters())
    assert small.update < 0.75 * whole.update and small.optimizer < 0.2 * whole.optimizer


def test_of_one_whose_eyes_split_by_data_memory_is_not_known(published: Any, sim: Any) -> None:
    policy = parallel(published("qwen2_vl"), sim)
    with on_meta_device("vlm"):
        made = described(policy.to_json())
        with pytest.raises(CapabilityError, match="memory cannot be estimated: the eyes of qwen2_vl"):
            estimate_memory(made, Load(16), policy.observation_spec)
        with pytest.raises(CapabilityError, match="memory cannot be estimated"):
            stand_in_adapters(made, LoraCfg(rank=4))


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
    told = ["--sim", "mujoco/tabletop", *OPTIONS, "--horizon", "2", "--state", "19", "--stats", str(demos)]
    assert main(["import", "vlm-oft", str(published("smolvlm")), *told, "--out", str(tmp_path / "vlm")]) == 0
    assert "has no actions yet" in capsys.readouterr().out
    few = [*OPTIONS, "--sim.num-envs", "4", "--evaluation.every", "0"]
    run = ["--init-from", str(tmp_path / "vlm"), "--dataset", str(demos), "--run-dir", str(tmp_path / "clone")]
    small = ["--algo.updates", "4", "--algo.updates-per-iteration", "2", "--algo.batch", "4", "--algo.symmetries"]
    lora = ["--lora.rank", "2", "--lora.heads", "action_queries", "proprio_projector"]
    assert main(["train", *TABLETOP_BC_VLM, *few, *run, *small, *lora]) == 0
    clone = load_policy(tmp_path / "clone")
    before = load_policy(tmp_path / "vlm")
    assert not torch.equal(clone.net.action_queries, before.net.action_queries)
    run = ["--init-from", str(tmp_path / "clone"), "--run-dir", str(tmp_path / "tuned")]
    small = ["--algo.iterations", "1", "--algo.groups", "1", "--algo.group-size", "2", "--algo.tries", "1"]
    judged = ["--algo.progress", "embedding", "--algo.keep-by", "reward", "--algo.minibatch", "8", "--algo.no-bf16"]
    assert main(["train", "srpo", *few, *run, *small, *judged]) == 0
    log = [json.loads(line) for line in (tmp_path / "tuned" / "scalars.jsonl").read_text().splitlines()]
    assert log[-1]["groups_drawn"] == 2
