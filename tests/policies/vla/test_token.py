"""Vision-language-action policies: tokens, prompts, OpenVLA's network in small and its names in full, the policy."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import robotrl
from robotrl.algos.bc import BcCfg, BcLoss
from robotrl.deploy.export import export
from robotrl.deploy.runtime import Controller
from robotrl.engine.autocast import in_bf16
from robotrl.engine.engine import Context
from robotrl.errors import CapabilityError, ConfigError, DataError, NumericsError
from robotrl.fn.bc_loss import clone_loss_of
from robotrl.fn.text import tokens as fn
from robotrl.policies.vla import bins
from robotrl.policies.vla.networks.autoregressive import DECODINGS, Prefix, attention, last_index, places
from robotrl.policies.vla.networks.openvla import OpenVla, OpenVlaCfg, TextCfg
from robotrl.policies.vla.networks.vision import DINOV2_L, SIGLIP_SO400M, Tower, TowerCfg
from robotrl.policies.vla.prompt import TASK, Prompt, WordTokenizer
from robotrl.policies.vla.roles import state_mask
from robotrl.policies.vla.token import TokenVlaCfg, TokenVlaPolicy
from robotrl.run.policy_checkpoint import policy_from_tree, policy_tree
from robotrl.run.token_fingerprint import TOLERANCE
from robotrl.sims.mujoco.tabletop.language import FAMILIES, VOCABULARY, InstructionFamily, compositions, encode
from robotrl.spec import HasTokens, Policy, Spec, visible
from robotrl.transforms import Clip, TransformGroup, bounds_to_unit, inverse
from tests.kits.paths_kit import DATA
from tests.kits.refusals import raises_naming

NAMES = DATA / "openvla_7b_tensors.txt"


# bins


@settings(max_examples=200, deadline=None)
@given(st.lists(st.floats(-2, 2), min_size=1, max_size=20))
def test_bins_are_those_of_the_published_formula(values: list[float]) -> None:
    """np.digitize over linspace(-1, 1, 256); id = 32000 - index; back: the middle of interval index - 1."""
    action = torch.tensor(values, dtype=torch.float64)
    edges = np.linspace(-1, 1, 256)
    index = np.digitize(np.clip(values, -1, 1), edges)
    token = bins.to_bins(action)
    assert bins.to_ids(token, 32000).tolist() == (32000 - index).tolist()
    assert torch.equal(bins.from_ids(bins.to_ids(token, 32000), 32000), token)
    middles = (edges[1:] + edges[:-1]) / 2
    expected = middles[np.clip(index - 1, 0, 254)]
    assert bins.to_action(token).numpy() == pytest.approx(expected, abs=1e-6)
    inside = np.clip(values, -1, 1)
    assert np.abs(bins.to_action(token).numpy() - inside).max() <= 1 / 255 + 1e-6


def test_an_action_on_an_edge_is_in_the_bin_above_it() -> None:
    edges = np.linspace(-1, 1, 256)
    assert bins.to_bins(torch.from_numpy(edges)).tolist() == list(range(256))


def test_bins_by_hand() -> None:
    token = bins.to_bins(torch.tensor([-1.0, -0.99, 0.0, 0.99, 1.0]))
    assert token.tolist() == [0, 1, 127, 253, 255]
    ids = bins.to_ids(token, 32000)
    assert ids.tolist() == [31999, 31998, 31872, 31746, 31744]
    # a bin's middle is in that bin, but for the last, which holds only 1.0
    every = torch.arange(255)
    assert torch.equal(bins.to_bins(bins.to_action(every)), every)
    assert bins.to_action(torch.tensor([254])) == bins.to_action(torch.tensor([255]))
    with raises_naming(ConfigError, "bins", 2):
        bins.edges(2)


# arithmetic


def test_log_probabilities_and_entropy_by_hand() -> None:
    logits = torch.tensor([[0.0, np.log(3.0)]])
    assert fn.log_prob(logits, torch.tensor([1]), 1.0).exp().item() == pytest.approx(0.75)
    hot = 3.0**0.5 / (1 + 3.0**0.5)
    assert fn.log_prob(logits, torch.tensor([1]), 2.0).exp().item() == pytest.approx(hot)
    assert fn.entropy(logits, 1.0).item() == pytest.approx(-(0.25 * np.log(0.25) + 0.75 * np.log(0.75)))
    assert fn.entropy(torch.zeros(1, 256), 1.6).item() == pytest.approx(np.log(256))


def test_wanted_shares() -> None:
    token = torch.tensor([[2, 0]])
    assert fn.spread(token, 4, 0.0).tolist() == [[[0, 0, 1, 0], [1, 0, 0, 0]]]
    soft = fn.spread(token, 4, 1.0)
    assert soft.sum(dim=-1) == pytest.approx(torch.ones(1, 2))
    assert soft[0, 0, 1] == pytest.approx(soft[0, 0, 3]) and soft[0, 0, 2] > soft[0, 0, 1] > soft[0, 0, 0]


def test_cross_entropy_leaves_padding_out() -> None:
    logits = torch.zeros(1, 2, 1, 4)
    logits[0, 1] = 100.0 * torch.eye(4)[0]
    wanted = fn.spread(torch.tensor([[[1], [1]]]), 4, 0.0)
    assert fn.cross_entropy(logits, wanted, torch.tensor([[True, False]])).item() == pytest.approx(np.log(4))
    assert fn.cross_entropy(logits, wanted, torch.tensor([[True, True]])).item() == pytest.approx((np.log(4) + 100) / 2)


# prompts


def read(prompt: Prompt, text: str) -> list[int]:
    out = prompt(torch.from_numpy(encode(text))[None])
    return out.ids[0][out.token_mask[0]].tolist()


EVERY = [one.say(way) for family in InstructionFamily for one in compositions(family) for way in range(2)]


def test_prompts_are_those_of_the_tokenizer() -> None:
    before, after = "in what action should the robot take to", "out"
    tokenizer = WordTokenizer([*before.split(), *VOCABULARY, after])
    prompt = Prompt(VOCABULARY, f"{before} {TASK} {after}", tokenizer)
    for text in EVERY[::17]:
        assert read(prompt, text) == tokenizer(f"{before} {text} {after}")


def subwords() -> Any:
    """A byte-pair tokenizer trained here, which cuts words into pieces."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    tokenizer: Any = Tokenizer(models.BPE(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.BpeTrainer(vocab_size=90, special_tokens=["[UNK]", "[BOS]"], show_progress=False)
    tokenizer.train_from_iterator([*EVERY, "In: What action should the robot take to do?\nOut:"], trainer)
    return tokenizer


def test_a_tokenizer_that_cuts_words_is_put_together_exactly() -> None:
    """The published prompt, a question mark right behind the last word included."""
    tokenizer = subwords()

    def tokenize(text: str) -> list[int]:
        return [1, *tokenizer.encode(text).ids]

    template = f"In: What action should the robot take to {TASK} ?\nOut:"
    prompt = Prompt(VOCABULARY, template, tokenize)
    assert prompt.table.shape[1] > 1
    for text in EVERY[::17]:
        assert read(prompt, text) == tokenize(template.replace(TASK, text))


def test_a_tokenizer_that_does_not_split_at_spaces_is_refused() -> None:
    def tokenize(text: str) -> list[int]:
        letters = text.encode()
        return [a * 256 + b for a, b in zip(letters[::2], letters[1::2], strict=False)]

    with pytest.raises(ConfigError, match="expected one that splits at spaces"):
        Prompt(VOCABULARY, TASK, tokenize)


def test_a_tokenizer_that_joins_a_word_with_what_follows_is_refused() -> None:
    """Only a word at the end shows it: "left?" is one token."""
    plain = WordTokenizer([*VOCABULARY, "left?", "?"])

    def tokenize(text: str) -> list[int]:
        return plain(text.replace("left ?", "left?"))

    with pytest.raises(ConfigError, match="expected one that splits at spaces"):
        Prompt(VOCABULARY, f"{TASK} ?", tokenize)


@pytest.mark.parametrize(
    ("words", "template", "message"),
    [
        (VOCABULARY, "do it", "expected {task} in it, once"),
        (("",), TASK, "has no word"),
        (VOCABULARY, f"please {TASK}", "word 'please' is not in the vocabulary"),
    ],
)
def test_bad_prompts(words: tuple[str, ...], template: str, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        Prompt(words, template, WordTokenizer(words))


# the network


def published() -> dict[str, tuple[int, ...]]:
    """Names and shapes, runs written out."""
    out: dict[str, tuple[int, ...]] = {}
    for line in NAMES.read_text().splitlines():
        if line.startswith("#"):
            continue
        name, *shape = line.split()
        run = re.search(r"\[0-(\d+)\]", name)
        for i in range(int(run[1]) + 1) if run else [0]:
            out[re.sub(r"\[.*\]", str(i), name)] = tuple(map(int, shape))
    return out


def test_at_full_size_names_and_shapes_are_the_published_ones() -> None:
    with torch.device("meta"):
        net = OpenVla(OpenVlaCfg())
    found = {name: tuple(value.shape) for name, value in net.state_dict().items()}
    assert found == published()
    assert sum(p.numel() for p in net.parameters()) == 7_541_237_184


TOWERS = (
    TowerCfg(32, 3, 2, 64, patch=8, image=32, prefix=5, layer_scale=True),
    TowerCfg(48, 3, 2, 64, patch=8, image=32, pool=True),
)
TEXT = TextCfg(64, 2, 4, 2, 128, vocabulary=448, padding=64, positions=256)


def network(decoding: Any, state: int = 0) -> OpenVla:
    torch.manual_seed(0)
    net = OpenVla(OpenVlaCfg(TOWERS, TEXT, decoding=decoding, state=state)).double()
    with torch.no_grad():
        for name, value in net.named_parameters():
            if "token" in name:
                value.normal_()
    return net


def inputs(state: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Three rows, two of whose prompts are padded."""
    generator = torch.Generator().manual_seed(1)
    pictures = torch.randint(256, (3, 32, 32, 3), generator=generator, dtype=torch.uint8)
    ids = torch.randint(3, 100, (3, 9), generator=generator)
    token_mask = torch.ones(3, 9, dtype=torch.bool)
    token_mask[1, 6:], token_mask[2, 4:] = False, False
    measured = torch.randn((3, state), generator=generator).double() if state else None
    return pictures, ids, token_mask, measured


def prefix_of(
    net: OpenVla, pictures: Tensor, ids: Tensor, token_mask: Tensor, measured: Tensor | None = None
) -> Prefix:
    return net.prefix(net.encode_images(pictures), ids, token_mask, measured)


def likeliest(logits: Tensor) -> Tensor:
    return logits.argmax(dim=-1)


@pytest.mark.parametrize("decoding", DECODINGS)
@pytest.mark.parametrize("state", [0, 7])
def test_padding_changes_nothing(decoding: Any, state: int) -> None:
    net = network(decoding, state)
    pictures, ids, token_mask, measured = inputs(state)
    prefix = prefix_of(net, pictures, ids, token_mask, measured)
    tokens = net.sample(prefix, 6, likeliest)
    whole = net.logits(prefix, tokens)
    for i in range(3):
        n = int(token_mask[i].sum())
        row = slice(i, i + 1)
        alone = prefix_of(
            net, pictures[row], ids[row, :n], token_mask[row, :n], None if measured is None else measured[row]
        )
        assert torch.allclose(net.logits(alone, tokens[row])[0], whole[i], atol=1e-12)
        assert torch.equal(net.sample(alone, 6, likeliest)[0], tokens[i])


@pytest.mark.parametrize("decoding", DECODINGS)
def test_what_was_said_with_the_cache_is_what_the_whole_pass_says(decoding: Any) -> None:
    net = network(decoding)
    prefix = prefix_of(net, *inputs())
    seen: list[Tensor] = []

    def choose(logits: Tensor) -> Tensor:
        seen.append(logits)
        return logits.argmax(dim=-1)

    tokens = net.sample(prefix, 6, choose)
    assert torch.allclose(torch.cat(seen, dim=1), net.logits(prefix, tokens), atol=1e-12)


def test_tokens_are_predicted_from_those_before_them() -> None:
    net = network("autoregressive")
    prefix = prefix_of(net, *inputs())
    tokens = net.sample(prefix, 6, likeliest)
    changed = tokens.clone()
    changed[:, 3] = (changed[:, 3] + 40) % 256
    moved = (net.logits(prefix, changed) - net.logits(prefix, tokens)).abs().amax(dim=(0, 2))
    assert (moved[:4] == 0).all() and (moved[4:] > 1e-6).all()


def test_parallel_tokens_see_everything_and_depend_on_no_token() -> None:
    net = network("parallel")
    pictures, ids, token_mask, _ = inputs()
    prefix = prefix_of(net, pictures, ids, token_mask)
    plain = net.logits(prefix, torch.zeros(3, 6, dtype=torch.int64))
    assert torch.equal(plain, net.logits(prefix, torch.full((3, 6), 99)))
    # the first token is read at the prompt's last, and yet sees the places of those after it
    more = net.logits(prefix, torch.zeros(3, 7, dtype=torch.int64))
    assert ((more[:, 0] - plain[:, 0]).abs() > 1e-6).any()


@pytest.mark.parametrize("decoding", DECODINGS)
def test_picture_words_and_state_all_matter(decoding: Any) -> None:
    net = network(decoding, 7)
    pictures, ids, token_mask, measured = inputs(7)
    assert measured is not None
    tokens = torch.zeros(3, 4, dtype=torch.int64)
    plain = net.logits(prefix_of(net, pictures, ids, token_mask, measured), tokens)
    other_words = torch.where(torch.arange(9) == 3, ids + 1, ids)
    for prefix in (
        prefix_of(net, 255 - pictures, ids, token_mask, measured),
        prefix_of(net, pictures, other_words, token_mask, measured),
        prefix_of(net, pictures, ids, token_mask, measured + 1),
    ):
        assert ((net.logits(prefix, tokens) - plain).abs().amax(dim=(1, 2)) > 1e-6).all()


def test_logits_are_those_of_the_actions_ids() -> None:
    """The whole head's logits at the ids that the published formula gives each bin."""
    net = network("autoregressive")
    prefix = prefix_of(net, *inputs())
    tokens = net.sample(prefix, 1, likeliest)
    hidden = net.language_model.model(
        inputs_embeds=prefix.embeddings,
        attention_mask=attention(prefix.token_mask, torch.float64, causal=True),
        position_ids=places(prefix.token_mask),
    ).last_hidden_state
    last = hidden[torch.arange(3), last_index(prefix.token_mask)]
    every = net.language_model.lm_head(last)
    ids = bins.to_ids(torch.arange(256), TEXT.end)
    assert ids.min() == TEXT.end - 256 and ids.max() == TEXT.end - 1
    assert torch.allclose(net.logits(prefix, tokens)[:, 0], every[:, ids])


def test_the_towers_blocks_but_the_last_are_computed_with() -> None:
    tower = Tower(TOWERS[0]).double()
    pictures = torch.randint(256, (2, 32, 32, 3), dtype=torch.uint8)
    plain = tower(pictures)
    assert plain.shape == (2, 16, 32) == (2, tower.cfg.patches, 32)
    for k in range(3):
        changed = Tower(TOWERS[0]).double()
        changed.load_state_dict(tower.state_dict())
        with torch.no_grad():
            changed.blocks[k].mlp.fc2.bias += 1.0  # type: ignore[union-attr]
        assert torch.equal(changed(pictures), plain) == (k == 2)


def test_a_tower_normalises_pixels() -> None:
    """A picture in the very mean colour is a picture of zeros."""
    cfg = TowerCfg(32, 2, 2, 64, patch=8, image=16, mean=(0.2, 0.4, 0.6), std=(0.5, 0.25, 0.125))
    tower = Tower(cfg).double()
    with torch.no_grad():
        tower.pos_embed.zero_()
        tower.patch_embed.proj.bias.zero_()
    caught: list[Tensor] = []
    tower.blocks[0].register_forward_pre_hook(lambda _, args: caught.append(args[0]))
    tower(torch.tensor([51, 102, 153], dtype=torch.uint8).expand(1, 16, 16, 3))
    assert caught[0].abs().max() < 1e-6
    assert (DINOV2_L.patch, SIGLIP_SO400M.image) == (14, 224)


@pytest.mark.parametrize(
    ("cfg", "message"),
    [
        (OpenVlaCfg((TOWERS[0], TowerCfg(48, 3, 2, 64, patch=16, image=32)), TEXT), "in 4 and 2 patches a side"),
        (OpenVlaCfg((TowerCfg(32, 3, 5, 64, patch=8, image=32), TOWERS[1]), TEXT), "width 32 by heads 5"),
        (OpenVlaCfg((TowerCfg(32, 1, 2, 64, patch=8, image=32), TOWERS[1]), TEXT), "2 blocks or more"),
        (OpenVlaCfg(TOWERS, TextCfg(vocabulary=256, padding=64)), "bins is 256: expected less than the 192 ids"),
        (OpenVlaCfg(TOWERS, TEXT, decoding="paralel"), "did you mean 'parallel'"),  # type: ignore[arg-type]
    ],
)
def test_sizes_that_do_not_fit(cfg: OpenVlaCfg, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        OpenVla(cfg)


# the policy

SMALL: dict[str, Any] = {"vision_width": 32, "vision_depth": 2, "vision_heads": 2, "width": 64, "heads": 2, "mlp": 128}


@pytest.fixture(scope="module")
def sim() -> Any:
    return robotrl.make_sim(
        "mujoco/tabletop", num_envs=6, seed=0, image="flat_near", image_size=32, families="point,lift,push"
    )


def policy_on(sim: Any, seed: int = 0, **changes: Any) -> TokenVlaPolicy:
    torch.manual_seed(seed)
    action = sim.action_spec
    outputs = (inverse(bounds_to_unit("action", action.low, action.high)), Clip("action", action.low, action.high))
    return TokenVlaCfg(**{**SMALL, "horizon": 2, **changes}).build(visible(sim), action, TransformGroup((), outputs))


@pytest.mark.parametrize("decoding", DECODINGS)
def test_a_policy_that_says_tokens(sim: Any, decoding: Any) -> None:
    policy = policy_on(sim, decoding=decoding)
    assert isinstance(policy, Policy) and isinstance(policy, HasTokens)
    obs = sim.reset(0)
    with torch.no_grad():
        chunk = policy.act(obs, generator=torch.Generator().manual_seed(0)).chunk
        again = policy.act(obs, generator=torch.Generator().manual_seed(0)).chunk
        other = policy.act(obs, generator=torch.Generator().manual_seed(1)).chunk
        best, same = (policy.act(obs, mode="mean").chunk for _ in range(2))
    assert chunk.shape == (6, 2, 5) and chunk.abs().max() <= 1
    assert torch.equal(chunk, again) and torch.equal(best, same) and not torch.equal(chunk, other)


def test_queries_tell_the_places_of_actions_apart(sim: Any) -> None:
    """From zeros tokens differ by their positions alone; each query is its own token's, and is stored."""
    policy, obs = policy_on(sim, queries=True), sim.reset(0)
    net = policy.net
    assert net.action_queries.shape == (10, SMALL["width"])
    again = policy_from_tree(policy_tree(policy), "here")
    with torch.no_grad():
        before = policy.text_features(policy.encode(obs))
        assert torch.equal(again.text_features(again.encode(obs)), before) and before.shape == (6, 10, SMALL["width"])
        net.action_queries[3] += 1.0
        moved = (policy.text_features(policy.encode(obs)) - before).abs().amax(dim=(0, 2))
        # the place of a query says the token after it
        assert moved.argmax() == 4 and (moved > 1e-7).all()
    with pytest.raises(ConfigError, match="queries is 10 and decoding is 'autoregressive': expected 0"):
        policy_on(sim, queries=True, decoding="autoregressive")


def test_what_a_policy_ignores_changes_nothing_and_is_stored(sim: Any) -> None:
    fast = ("tip_vel_x_w", "tip_vel_y_w")
    policy, obs = policy_on(sim, ignored=fast), sim.reset(0)
    names = sim.observation_spec["state"].names
    columns = [names.index(name) for name in fast]
    other = {**obs, "state": obs["state"].clone()}
    other["state"][:, columns] += 0.7
    with torch.no_grad():
        plain, moved = (policy.token_logits(policy.encode(x), torch.zeros(6, 2, 5).long()) for x in (obs, other))
        assert torch.equal(plain, moved)
        other["state"][:, names.index("tip_pos_x_w")] += 0.7
        assert not torch.equal(plain, policy.token_logits(policy.encode(other), torch.zeros(6, 2, 5).long()))
    again = policy_from_tree(policy_tree(policy), "here")
    assert torch.equal(again.state_mask, policy.state_mask) and policy.state_mask.sum() == len(names) - 2
    with raises_naming(ConfigError, "policy.ignored", "tip_vel_x", nearest="tip_vel_x_w"):
        policy_on(sim, ignored=("tip_vel_x",))


def test_of_a_list_of_vectors_each_has_the_same_columns() -> None:
    """Three things' positions beside a gripper's opening, as cameras' matrices are."""
    specs = {
        "opening": Spec((1,), ("opening",), ("m",), (0.0,), (1.0,)),
        "things": Spec((3, 2), ("x", "y"), ("m",) * 2, (-1.0,) * 2, (1.0,) * 2),
    }
    assert state_mask(specs, ("opening", "things"), ("y",)).tolist() == [1, 1, 0, 1, 0, 1, 0]


def said_and_trained(policy: Any, obs: Any) -> tuple[Tensor, Tensor]:
    """Log-probabilities (B, H, A) of what is said: when it is said, with the cache, and of all of it in one pass."""
    temperature = policy.temperature
    seen: list[Tensor] = []
    generator = torch.Generator().manual_seed(0)

    def choose(logits: Tensor) -> Tensor:
        share = (logits.float() / temperature).softmax(dim=-1)
        said = torch.multinomial(share.flatten(0, -2), 1, generator=generator).reshape(logits.shape[:-1])
        seen.append(fn.log_prob(logits.float(), said, temperature))
        return said

    with torch.no_grad():
        ctx = policy.encode(obs)
        said = policy.net.sample(ctx, 10, choose).unflatten(1, (2, 5))
        assert torch.equal(said, policy.sample_tokens(ctx, torch.Generator().manual_seed(0), "sample"))
        trained = fn.log_prob(policy.token_logits(ctx, said), said, temperature)
    return torch.cat(seen, dim=1).unflatten(1, (2, 5)), trained


@pytest.mark.parametrize("decoding", DECODINGS)
@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.6])
def test_the_first_ratio_is_one(sim: Any, decoding: Any, temperature: float) -> None:
    """Log-probabilities at sampling, with the cache, and at training, in one pass, agree to 1e-5 for each token."""
    said, trained = said_and_trained(policy_on(sim, decoding=decoding, temperature=temperature), sim.reset(0))
    assert (said - trained).abs().max() < 1e-5


@pytest.mark.parametrize("decoding", DECODINGS)
def test_in_bfloat16_the_first_ratio_is_nearly_one(sim: Any, decoding: Any) -> None:
    policy, obs = policy_on(sim, decoding=decoding), sim.reset(0)
    full, _ = said_and_trained(policy, obs)
    with in_bf16(True, torch.device("cpu")):
        said, trained = said_and_trained(policy, obs)
    assert said.dtype == trained.dtype == torch.float32
    assert (said - full).abs().max() > 0
    gap = (said - trained).abs()
    assert gap.max() < 2e-2 and gap.mean() < 5e-3


def test_sampling_follows_the_logits(sim: Any) -> None:
    """Frequencies of the first token over many draws, at a temperature."""
    policy = policy_on(sim, horizon=1, bins=8, temperature=1.6)
    obs = {key: value[:1].repeat_interleave(4000, 0) for key, value in sim.reset(0).items()}
    with torch.no_grad():
        # one context serves all rows: nothing else differs
        ctx = policy.encode({key: value[:1] for key, value in obs.items()})
        many = Prefix(ctx.embeddings.expand(4000, -1, -1), ctx.token_mask.expand(4000, -1))
        said = policy.sample_tokens(many, torch.Generator().manual_seed(0), "sample")[:, 0, 0]
        wanted = (policy.token_logits(ctx, torch.zeros(1, 1, 5, dtype=torch.int64))[0, 0, 0] / 1.6).softmax(dim=-1)
    assert torch.bincount(said, minlength=8) / 4000 == pytest.approx(wanted.numpy(), abs=0.03)


@pytest.mark.parametrize("decoding", DECODINGS)
def test_tokens_are_taken_from_where_they_are_wanted(sim: Any, decoding: Any) -> None:
    """The running sum of probabilities, given what was said before, passes the place within each bin."""
    policy, obs = policy_on(sim, decoding=decoding, temperature=1.6), sim.reset(0)
    at = torch.rand((6, 2, 5), generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    at[0], at[1, 0] = 0.0, 1.0
    with torch.no_grad():
        ctx = policy.encode(obs)
        said = policy.sample_tokens(ctx, None, "sample", at)
        share = (policy.token_logits(ctx, said).double() / 1.6).softmax(dim=-1)
    above = share.cumsum(dim=-1).gather(-1, said[..., None])[..., 0]
    below = above - share.gather(-1, said[..., None])[..., 0]
    assert (below <= at + 1e-5).all() and (at <= above + 1e-5).all()
    assert (said[0] == 0).all() and (said[1, 0] == policy.bins - 1).all()


def test_the_median_by_hand() -> None:
    """Half of the probability lies up to the third bin, up to the first, and, exactly, up to the second."""
    share = torch.tensor([[0.2, 0.1, 0.4, 0.3], [0.5, 0.0, 0.0, 0.5], [0.25, 0.25, 0.5, 0.0]])
    assert fn.median(share).tolist() == [2, 0, 1]
    assert fn.median(torch.eye(4)).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("decoding", DECODINGS)
def test_the_median_is_said_when_deployed(sim: Any, decoding: Any) -> None:
    """As the place in the middle of what would be drawn; nothing else about the policy differs."""
    likeliest, policy = (policy_on(sim, decoding=decoding, deploy=how) for how in ("likeliest", "median"))
    obs = sim.reset(0)
    with torch.no_grad():
        said = policy.act(obs, mode="mean").chunk
        ctx = policy.encode(obs)
        middle = policy.sample_tokens(ctx, None, "sample", torch.full((6, 2, 5), 0.5, dtype=torch.float64))
        assert torch.equal(policy.sample_tokens(ctx, None, "mean"), middle)
        assert torch.equal(said, policy.to_actions(policy.from_tokens(middle)))
        assert not torch.equal(said, likeliest.act(obs, mode="mean").chunk)
        logits = (each.token_logits(each.encode(obs), middle) for each in (likeliest, policy))
        assert torch.equal(*logits)


def test_another_picture_and_another_instruction_change_the_action(sim: Any) -> None:
    policy = policy_on(sim)
    obs = {key: value.clone() for key, value in sim.reset(0).items()}
    tokens = torch.zeros(6, 2, 5, dtype=torch.int64)
    with torch.no_grad():
        plain = policy.token_logits(policy.encode(obs), tokens)
        for key, value in (
            ("image_flat_near", 255 - obs["image_flat_near"]),
            ("instruction", obs["instruction"].roll(1, 0)),
        ):
            changed = policy.token_logits(policy.encode({**obs, key: value}), tokens)
            rows = (value != obs[key]).flatten(1).any(dim=1)
            assert ((changed - plain).abs().amax(dim=(1, 2, 3)) > 1e-6).tolist() == rows.tolist()


@pytest.mark.parametrize("decoding", DECODINGS)
def test_a_checkpoint_gives_the_same_policy(sim: Any, decoding: Any) -> None:
    policy = policy_on(sim, decoding=decoding)
    tree = policy_tree(policy)
    again = policy_from_tree(tree, "here")
    obs = sim.reset(0)
    assert torch.equal(policy.act(obs, mode="mean").chunk, again.act(obs, mode="mean").chunk)
    assert again.observation_spec["instruction"].words == VOCABULARY
    name = next(name for name in tree["weights"] if name.endswith("lm_head.weight"))
    with pytest.raises(DataError, match=f"lacks weights: {re.escape(name)}"):
        policy_from_tree({**tree, "weights": {k: v for k, v in tree["weights"].items() if k != name}}, "here")
    shifted = {**tree["weights"], name: tree["weights"][name].roll(7, 0)}
    with pytest.raises(DataError, match="fingerprint"):
        policy_from_tree({**tree, "weights": shifted}, "here")


def edited(tree: dict[str, Any], edit: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    description = json.loads(json.dumps(tree["description"]))
    edit(description)
    assert description != json.loads(json.dumps(tree["description"]))
    return {**tree, "description": description}


@pytest.mark.parametrize("decoding", DECODINGS)
def test_what_does_not_move_the_likeliest_bins_is_noticed(sim: Any, decoding: Any) -> None:
    policy = policy_on(sim, decoding=decoding)
    tree = policy_tree(policy)
    fingerprint = tree["fingerprint"]
    assert fingerprint["logits"].shape == (1, 2, 5, policy.bins) and not fingerprint["half"]
    generator = torch.Generator().manual_seed(0)

    def near(by: float) -> dict[str, Tensor]:
        """Weights off by a share of what they are, at random."""
        return {
            name: x * (1 + by * torch.randn(x.shape, generator=generator)) if x.is_floating_point() else x
            for name, x in tree["weights"].items()
        }

    for by in (0.01, 0.001):
        with pytest.raises(DataError, match=r"here: the policy's fingerprint (logits differ|action differs)"):
            policy_from_tree({**tree, "weights": near(by)}, "here")
    name = next(name for name in tree["weights"] if name.endswith("q_proj.weight"))
    one = tree["weights"][name].clone()
    one[0, 0] += 1.0
    with pytest.raises(DataError, match=r"here: the policy's fingerprint (logits differ|action differs)"):
        policy_from_tree({**tree, "weights": {**tree["weights"], name: one}}, "here")
    changes: list[Callable[[dict[str, Any]], object]] = [
        lambda d: d.update(control_dt_s=0.5),
        lambda d: d["cfg"].update(temperature=9.0),
        lambda d: d["cfg"].update(label_bins=7.0),
        lambda d: d["transforms"]["outputs"][0]["offset"].__setitem__(0, 0.01),
    ]
    for change in changes:
        with pytest.raises(DataError, match=r"here: the policy's description .* is not the one that was saved"):
            policy_from_tree(edited(tree, change), "here")


def test_a_token_policy_of_before_is_loaded(sim: Any) -> None:
    """It has no sum of its description and no logits; what little its actions tell is still held against them."""
    tree = policy_tree(policy_on(sim))
    kept = ("obs", "noise", "actions", "device")
    before = {key: tree[key] for key in ("description", "weights")}
    before["fingerprint"] = {key: tree["fingerprint"][key] for key in kept}
    assert policy_from_tree(before, "here").kind == "token-vla"
    moved = {**before, "fingerprint": {**before["fingerprint"], "actions": tree["fingerprint"]["actions"] + 0.1}}
    with pytest.raises(DataError, match="fingerprint action differs"):
        policy_from_tree(moved, "here")


@pytest.mark.parametrize("decoding", DECODINGS)
def test_another_number_of_threads_is_no_other_policy(sim: Any, decoding: Any) -> None:
    policy = policy_on(sim, decoding=decoding)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        tree = policy_tree(policy)
        torch.set_num_threads(2)
        policy_from_tree(tree, "here")
        stored = tree["fingerprint"]["logits"]
        off = (policy_tree(policy)["fingerprint"]["logits"] - stored).abs().max() / stored.std()
    finally:
        torch.set_num_threads(threads)
    assert off < 0.1 * TOLERANCE


def test_logits_of_another_device_or_of_16_bits_may_differ_by_more(sim: Any) -> None:
    tree = policy_tree(policy_on(sim))
    spread = tree["fingerprint"]["logits"].std()

    def stored(by: float, **fields: Any) -> dict[str, Any]:
        logits = tree["fingerprint"]["logits"] + by * spread
        return {**tree, "fingerprint": {**tree["fingerprint"], "logits": logits, **fields}}

    for by, fields in ((5e-4, {}), (5e-3, {"device": "cuda"}), (0.1, {"half": True})):
        assert policy_from_tree(stored(by, **fields), "here").kind == "token-vla"
        with pytest.raises(DataError, match="fingerprint logits differ"):
            policy_from_tree(stored(4 * by, **fields), "here")


def test_logits_that_are_not_finite_are_never_stored(sim: Any) -> None:
    policy = policy_on(sim, decoding="parallel")
    with torch.no_grad():
        policy.net.language_model.lm_head.weight.fill_(3e38)
    with pytest.raises(NumericsError, match="logits on a fixed input are not finite"):
        policy_tree(policy)


def test_a_spec_carries_its_words() -> None:
    spec = Spec((2,), ("word_0", "word_1"), ("1",) * 2, (0.0,) * 2, (2.0,) * 2, "int32", ("", "go", "stop"))
    assert Spec.from_json(spec.to_json()) == spec
    plain = Spec((1,), ("x",), ("m",), (0.0,), (1.0,))
    assert "words" not in plain.to_json() and Spec.from_json(plain.to_json()) == plain


@pytest.mark.parametrize(
    ("options", "cfg", "error", "message"),
    [
        ({}, {}, CapabilityError, "needs a picture"),
        ({"image": ["flat_near", "flat_side"]}, {}, ConfigError, "expected one of image_flat_near, image_flat_side"),
        ({"image": "flat_near"}, {"camera": "image_flat_neer"}, ConfigError, "did you mean 'image_flat_near'"),
        ({"image": "flat_near"}, {"temperature": 0.0}, ConfigError, "policy.temperature is 0.0"),
        (
            {"image": "flat_near"},
            {"deploy": "medain"},
            ConfigError,
            "policy.deploy 'medain' is unknown: did you mean 'median'",
        ),
        ({"image": "flat_near"}, {"label_bins": -1.0}, ConfigError, "policy.label_bins is -1.0"),
        ({"image": "flat_near", "image_size": 40}, {}, ConfigError, "image 40 by patch 16"),
    ],
)
def test_observations_and_settings_that_do_not_fit(
    options: dict[str, Any], cfg: dict[str, Any], error: type[Exception], message: str
) -> None:
    sim = robotrl.make_sim("mujoco/tabletop", num_envs=1, seed=0, **{"image_size": 32, **options})
    with pytest.raises(error, match=message):
        policy_on(sim, **cfg)


def test_a_sim_that_does_not_speak_is_refused() -> None:
    sim = robotrl.make_sim("mujoco/reach", num_envs=1, seed=0, image="flat_top", image_size=32)
    with pytest.raises(CapabilityError, match="an instruction"):
        policy_on(sim)


@pytest.mark.parametrize("decoding", DECODINGS)
def test_one_batch_is_learned_by_heart(sim: Any, decoding: Any) -> None:
    """Cloning, through the loss that the policy is cloned with, words telling the rows apart."""
    policy = policy_on(sim, decoding=decoding)
    obs = {key: value.clone() for key, value in sim.reset(0).items()}
    obs["image_flat_near"][:], obs["state"][:] = obs["image_flat_near"][:1], obs["state"][:1]
    assert len({tuple(row) for row in obs["instruction"].tolist()}) == 6
    chunk = 2 * torch.rand((6, 2, 5), generator=torch.Generator().manual_seed(0)) - 1
    valid = torch.ones(6, 2, dtype=torch.bool)
    optimizer = torch.optim.Adam(policy.parameters(), lr=3e-3)
    for _ in range(140 if decoding == "parallel" else 60):
        loss = clone_loss_of(policy).loss(policy, policy.encode(obs), chunk, valid)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.1
    assert (policy.act(obs, mode="mean").chunk - chunk).abs().max() <= 1 / 255 + 1e-6


@pytest.mark.parametrize("deploy", ["likeliest", "median"])
def test_it_leaves_as_a_bundle_that_reads(sim: Any, deploy: Any, tmp_path: Path) -> None:
    """The ONNX graph sees, reads and says what the policy says; another instruction is another action."""
    policy = policy_on(sim, bins=64, deploy=deploy)
    policy.control_dt_s = sim.control_dt_s
    obs, rows = sim.reset(0), []
    generator = torch.Generator().manual_seed(0)
    for _ in range(171):
        rows.append({key: obs[key].clone() for key in policy.observation_spec})
        obs = sim.step(2 * torch.rand((6, 5), generator=generator) - 1).obs
    recorded = {key: torch.cat([row[key] for row in rows]) for key in rows[0]}
    report = export(policy, tmp_path / "bundle", observations={key: value.numpy() for key, value in recorded.items()})
    assert report.parity_max_rel <= 1e-5 and report.samples >= 1000
    said: list[np.ndarray] = []
    for row in range(3):
        controller = Controller.load(tmp_path / "bundle")
        one = {key: value[row].numpy() for key, value in recorded.items()}
        expected = policy.act({key: value[row : row + 1] for key, value in recorded.items()}, mode="mean").chunk[0]
        said = [controller.step(one).copy() for _ in range(2)]
        assert np.stack(said) == pytest.approx(expected.numpy(), abs=1e-5)
    words = {**one, "instruction": encode("slide the green can forward")}
    assert not np.allclose(Controller.load(tmp_path / "bundle").step(words), said[0])


def test_every_family_can_be_read(sim: Any) -> None:
    policy = policy_on(sim)
    assert len(FAMILIES) == 13
    for text in EVERY[::29]:
        ids = policy.prompt(torch.from_numpy(encode(text))[None])
        assert int(ids.token_mask.sum()) == 1 + len(text.split())


@pytest.mark.parametrize("decoding", DECODINGS)
def test_it_is_cloned_with_a_second_task_in_bfloat16(sim: Any, decoding: Any) -> None:
    policy = policy_on(sim, decoding=decoding)
    obs = {f"obs/{key}": x.clone() for key, x in sim.reset(0).items() if key in policy.observation_spec}
    valid = torch.ones(6, 2, dtype=torch.bool)
    batch = {**obs, "chunk": torch.zeros(6, 2, 5), "valid": valid, "grounding": torch.zeros(6, 3)}
    batch |= {f"scene/{key.removeprefix('obs/')}": x for key, x in obs.items()}
    found = [BcLoss(policy, clone_loss_of(policy), BcCfg(grounding_coef=1.0, bf16=bf16), 3) for bf16 in (False, True)]
    found[1].load_state_dict(found[0].state_dict())
    full, half = (loss(batch, Context({"updates": torch.zeros(())}, {}, "")) for loss in found)
    assert half.loss.dtype == torch.float32
    assert 0 < (full.loss - half.loss).abs() < 0.02 * full.loss
