"""Run by another Python, one that has the lerobot package: `vla_side.py smolvla|names OUT_DIR`.

`smolvla` builds lerobot's SmolVLA at toy size, without a network, and saves its weights, what it was shown and what it
said; `names` lists tensors and shapes of the published sizes of SmolVLA and pi0.
"""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path

import numpy as np
import torch
from transformers import SmolVLMConfig

from tests.kits.lerobot_side import mend_torchvision

TOY = {
    "text_config": {
        "model_type": "llama",
        "hidden_size": 48,
        "intermediate_size": 64,
        "num_hidden_layers": 6,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 12,
        "vocab_size": 100,
        "rms_norm_eps": 1e-5,
        "rope_theta": 100000,
    },
    "vision_config": {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "image_size": 32,
        "patch_size": 8,
    },
    "scale_factor": 2,
    "image_token_id": 99,
}
PUBLISHED = {
    "text_config": {
        "model_type": "llama",
        "hidden_size": 960,
        "intermediate_size": 2560,
        "num_hidden_layers": 32,
        "num_attention_heads": 15,
        "num_key_value_heads": 5,
        "head_dim": 64,
        "vocab_size": 49280,
        "rms_norm_eps": 1e-5,
    },
    "vision_config": {
        "hidden_size": 768,
        "intermediate_size": 3072,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "image_size": 512,
        "patch_size": 16,
    },
    "scale_factor": 4,
    "image_token_id": 49190,
}


def smolvla(config, **changes):
    """lerobot's network for a vision-language model's config, which it would fetch by name."""
    from lerobot.policies.smolvla import modeling_smolvla, smolvlm_with_expert
    from lerobot.policies.smolvla.configuration_smolvla import SmolVLAConfig

    tokenizer = types.SimpleNamespace(fake_image_token_id=1, global_image_token_id=2)
    fetched = types.SimpleNamespace(from_pretrained=lambda name: SmolVLMConfig(**config))
    smolvlm_with_expert.AutoConfig = fetched
    smolvlm_with_expert.AutoProcessor = types.SimpleNamespace(
        from_pretrained=lambda name: types.SimpleNamespace(tokenizer=tokenizer)
    )
    return modeling_smolvla.VLAFlowMatching(SmolVLAConfig(device="cpu", **changes))


@torch.no_grad()
def places(vision):
    """The position that this version of transformers gives each patch: 4.57 counts 0, 0, 1, 2 along a side of four."""
    embeddings = vision.embeddings
    kept = embeddings.position_embedding.weight.clone()
    numbers = torch.arange(len(kept), dtype=kept.dtype)[:, None].expand_as(kept)
    side = embeddings.image_size // embeddings.patch_size
    everyone = torch.ones(1, side, side, dtype=torch.bool)
    pixels = torch.zeros(1, 3, embeddings.image_size, embeddings.image_size)
    shown = embeddings(pixel_values=pixels, patch_attention_mask=everyone)
    embeddings.position_embedding.weight.copy_(kept + numbers)
    moved = embeddings(pixel_values=pixels, patch_attention_mask=everyone)
    embeddings.position_embedding.weight.copy_(kept)
    return (moved - shown)[0, :, 0].round().long()


def toy(out):
    from safetensors.torch import save_file

    torch.manual_seed(0)
    net = smolvla(TOY, chunk_size=6, n_action_steps=6, num_vlm_layers=4, max_state_dim=7, max_action_dim=5, num_steps=4)
    net = net.float().eval()
    for parameter in net.parameters():
        parameter.data += 0.05 * torch.randn_like(parameter)
    save_file({name: x.contiguous() for name, x in net.state_dict().items()}, out / "weights.safetensors")
    pictures = torch.randint(0, 256, (2, 3, 32, 32, 3), dtype=torch.uint8)
    ids, there = torch.randint(0, 100, (3, 5)), torch.ones(3, 5, dtype=torch.bool)
    there[1, 3:] = False
    state, noise, time = torch.randn(3, 7), torch.randn(3, 6, 5), torch.tensor([0.2, 0.7, 1.0])
    shown = [x.permute(0, 3, 1, 2).float() / 255 * 2 - 1 for x in pictures]
    masks = [torch.ones(3, dtype=torch.bool), torch.tensor([True, True, False])]
    inputs = shown, masks, ids, there, state
    with torch.no_grad():
        chunk = net.sample_actions(*inputs, noise=noise)
        actions = torch.zeros_like(noise)
        # the loss with actions of zero is (noise - velocity)^2 at time * noise
        loss = net.forward(*inputs, actions, noise, time)
    arrays = {
        "pictures": pictures,
        "ids": ids,
        "there": there,
        "state": state,
        "noise": noise,
        "time": time,
        "chunk": chunk,
        "loss": loss,
        "places": places(net.vlm_with_expert.get_vlm_model().vision_model),
    }
    np.savez(out / "seen.npz", **{name: x.numpy() for name, x in arrays.items()})


def names(out):
    from lerobot.policies.pi0 import modeling_pi0

    checked = types.ModuleType("check")
    checked.check_whether_transformers_replace_is_installed_correctly = lambda: True
    sys.modules["transformers.models.siglip.check"] = checked
    with torch.device("meta"):
        nets = {"smolvla": smolvla(PUBLISHED), "pi0": modeling_pi0.PI0Pytorch(modeling_pi0.PI0Config())}
    found = {name: {key: list(x.shape) for key, x in net.state_dict().items()} for name, net in nets.items()}
    (out / "names.json").write_text(json.dumps(found))


if __name__ == "__main__":
    library = mend_torchvision()
    {"smolvla": toy, "names": names}[sys.argv[1]](Path(sys.argv[2]))
