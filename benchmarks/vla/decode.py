"""Action tokens per second, autoregressive: ours against `transformers.generate` with its cache.

Both use the same Llama, the same prefix of embeddings and the same batch, with greedy decoding; ours takes the argmax
over the action bins only, the peer, like published code, over the whole vocabulary.

`python -m benchmarks.vla.decode OUT` writes OUT/result.json.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks.kit.figures import Figure, paired
from robotrl.policies.vla.networks.autoregressive import Prefix
from robotrl.policies.vla.networks.openvla import OpenVla, OpenVlaCfg, TextCfg
from robotrl.policies.vla.networks.vision import TowerCfg
from robotrl.utils.devices import CPU
from robotrl.utils.files import dump_json, replace_file

ROUNDS = 9
TOKENS = 28
"""Number of tokens: four actions of seven numbers."""
PREFIX = 48
"""Prefix length: image patches and words."""
PEER = "transformers.generate"


class Size(NamedTuple):
    """Sizes of the language model, and of the batch."""

    text: TextCfg
    batch: int


SMALL, LARGE = TextCfg(256, 5, 8, 8, 704, 1024, 64, 256), TextCfg(768, 12, 12, 12, 2048, 32064, 64, 256)
SIZES = {
    "5m": Size(SMALL, 64),
    "100m": Size(LARGE, 16),
    # batch size 1, as on one robot
    "5m_alone": Size(SMALL, 1),
    "100m_alone": Size(LARGE, 1),
}
TOY = TowerCfg(32, 2, 2, 64, 16, 32)
"""Smallest vision towers, because the network needs some; no images are used."""


def measure(size: Size, rounds: int = ROUNDS, tokens: int = TOKENS, device: torch.device = CPU) -> Figure:
    """Tokens per second of one size."""
    torch.manual_seed(0)
    net = OpenVla(OpenVlaCfg((TOY, TOY), size.text)).eval().to(device)
    embeddings = torch.randn(size.batch, PREFIX, size.text.width).to(device)
    there = torch.ones(size.batch, PREFIX, dtype=torch.bool, device=device)
    model: Any = net.language_model
    parameters = sum(x.numel() for x in model.parameters())

    said: list[torch.Tensor] = []

    def ours() -> None:
        said.append(net.sample(Prefix(embeddings, there), tokens, lambda logits: logits.argmax(dim=-1)))

    def peer() -> None:
        # no early end: as many tokens as ours
        model.generate(
            inputs_embeds=embeddings,
            attention_mask=there.long(),
            min_new_tokens=tokens,
            max_new_tokens=tokens,
            do_sample=False,
            use_cache=True,
            pad_token_id=0,
        )

    def rate(say: Callable[[], None]) -> Callable[[], float]:
        def once() -> float:
            begun = time.perf_counter()
            with torch.inference_mode():
                say()
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            return size.batch * tokens / (time.perf_counter() - begun)

        return once

    # on a GPU the second call with a shape captures a CUDA graph, which is not part of decoding
    found = paired({"ours": rate(ours), PEER: rate(peer)}, rounds, warmup=2)
    # on a GPU the first call runs layer by layer, later ones replay the graph
    if not all(torch.equal(said[0], again) for again in said):
        raise RuntimeError(f"of {len(said)} times the same was not said: expected one sentence a row")
    rows = f"{size.batch} row{'s' if size.batch > 1 else ''}"
    note = f"{parameters / 1e6:.1f} million parameters, {rows}, {tokens} tokens behind {PREFIX}, float32"
    return found.figure("ours", PEER, "tokens/s", "higher", note)


def main(out: Path) -> None:
    """Run the cell in this process."""
    figures = {f"decode_{name}": measure(size).to_json() for name, size in SIZES.items()}
    replace_file(out / "result.json", dump_json(figures))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
