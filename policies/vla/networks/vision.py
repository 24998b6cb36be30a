"""Vision transformers with the parameter names of timm, for OpenVLA's DINOv2 and SigLIP towers.

A tower returns the patch features of its second-to-last block, without the final norm, as in LLaVA-like models. The
last block, the last norm and SigLIP's pooling head are not used; they exist because published checkpoints contain
their weights, and checkpoints are loaded strictly.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from robotrl.errors import ConfigError

NORM_EPS = 1e-6


@dataclass(frozen=True)
class TowerCfg:
    """Sizes and pixel normalization of a `Tower`."""

    width: int
    depth: int
    """Blocks, 2 or more."""
    heads: int
    mlp: int
    """Hidden width of a block's MLP."""
    patch: int = 14
    """Side of a patch, in pixels."""
    image: int = 224
    """Side of an image, in pixels."""
    prefix: int = 0
    """Tokens before the patches: a class token, then registers (Darcet et al. 2023)."""
    layer_scale: bool = False
    pool: bool = False
    """The checkpoint has an attention pooling head."""
    mean: tuple[float, float, float] = (0.5, 0.5, 0.5)
    """Mean of each color, subtracted from pixels in [0, 1] ..."""
    std: tuple[float, float, float] = (0.5, 0.5, 0.5)
    """... and std, by which the difference is divided."""

    @property
    def patches(self) -> int:
        """P, patches per image."""
        return (self.image // self.patch) ** 2


DINOV2_L = TowerCfg(
    1024,
    24,
    16,
    4096,
    prefix=5,
    layer_scale=True,
    mean=(0.484375, 0.455078125, 0.40625),
    std=(0.228515625, 0.2236328125, 0.224609375),
)
"""timm's vit_large_patch14_reg4_dinov2, with mean and std of OpenVLA's published preprocessor."""
SIGLIP_SO400M = TowerCfg(1152, 27, 16, 4304, pool=True)
"""timm's vit_so400m_patch14_siglip_224."""


class Attention(nn.Module):
    """Self-attention over all tokens."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, D) to the same."""
        batch, tokens, width = x.shape
        q, k, v = self.qkv(x).reshape(batch, tokens, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        out = scaled_dot_product_attention(q, k, v)
        return self.proj(out.transpose(1, 2).reshape(batch, tokens, width))


class VisionMlp(nn.Module):
    """MLP of two layers with a GELU."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(width, hidden)
        self.fc2 = nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        """(..., D) to the same."""
        return self.fc2(nn.functional.gelu(self.fc1(x)))


class LayerScale(nn.Module):
    """Learned gain for each channel (Touvron et al. 2021); named `scale_factor` by OpenVLA, `gamma` by timm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale_factor = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """(..., D) to the same."""
        return x * self.scale_factor


class VisionBlock(nn.Module):
    """Pre-norm transformer block: attention, then MLP, each with a residual."""

    def __init__(self, cfg: TowerCfg) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(cfg.width, NORM_EPS)
        self.attn = Attention(cfg.width, cfg.heads)
        self.norm2 = nn.LayerNorm(cfg.width, NORM_EPS)
        self.mlp = VisionMlp(cfg.width, cfg.mlp)
        if cfg.layer_scale:
            self.ls1, self.ls2 = LayerScale(cfg.width), LayerScale(cfg.width)
        else:
            self.ls1, self.ls2 = nn.Identity(), nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, D) to the same."""
        x = x + self.ls1(self.attn(self.norm1(x)))
        return x + self.ls2(self.mlp(self.norm2(x)))


class Patches(nn.Module):
    """Patch embedding."""

    def __init__(self, cfg: TowerCfg) -> None:
        super().__init__()
        self.proj = nn.Conv2d(3, cfg.width, cfg.patch, stride=cfg.patch)

    def forward(self, pixels: Tensor) -> Tensor:
        """Pixels (B, 3, S, S) to patches (B, P, D), row by row."""
        return self.proj(pixels).flatten(2).transpose(1, 2)


class Pool(nn.Module):
    """Weights of timm's attention pooling head; unused."""

    def __init__(self, cfg: TowerCfg) -> None:
        super().__init__()
        self.latent = nn.Parameter(torch.zeros(1, 1, cfg.width))
        self.q = nn.Linear(cfg.width, cfg.width)
        self.kv = nn.Linear(cfg.width, 2 * cfg.width)
        self.proj = nn.Linear(cfg.width, cfg.width)
        self.norm = nn.LayerNorm(cfg.width, NORM_EPS)
        self.mlp = VisionMlp(cfg.width, cfg.mlp)


class Tower(nn.Module):
    """A vision transformer up to its second-to-last block.

    Raises:
        ConfigError: inconsistent sizes.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, cfg: TowerCfg) -> None:
        super().__init__()
        if cfg.image % cfg.patch or cfg.width % cfg.heads or cfg.depth < 2:
            raise ConfigError(
                f"tower: image {cfg.image} by patch {cfg.patch}, width {cfg.width} by heads {cfg.heads}, depth"
                f" {cfg.depth}: expected whole patches, whole heads, and 2 blocks or more"
            )
        self.cfg = cfg
        if cfg.prefix:
            self.cls_token = nn.Parameter(torch.zeros(1, 1, cfg.width))
        if cfg.prefix > 1:
            self.reg_token = nn.Parameter(torch.zeros(1, cfg.prefix - 1, cfg.width))
        self.pos_embed = nn.Parameter(0.02 * torch.randn(1, cfg.patches, cfg.width))
        self.patch_embed = Patches(cfg)
        self.blocks = nn.ModuleList(VisionBlock(cfg) for _ in range(cfg.depth))
        self.norm = nn.LayerNorm(cfg.width, NORM_EPS)
        if cfg.pool:
            self.attn_pool = Pool(cfg)
        for name in ("mean", "std"):
            self.register_buffer(name, torch.tensor(getattr(cfg, name))[:, None, None], persistent=False)

    def forward(self, pictures: Tensor) -> Tensor:
        """Patch features (B, P, D) of images (B, S, S, 3), uint8."""
        pixels = pictures.permute(0, 3, 1, 2).to(self.pos_embed.dtype) / 255
        x = self.patch_embed((pixels - self.mean) / self.std) + self.pos_embed
        before = [getattr(self, name) for name in ("cls_token", "reg_token") if hasattr(self, name)]
        x = torch.cat([*(token.expand(len(x), -1, -1) for token in before), x], dim=1)
        for block in self.blocks[:-1]:
            x = block(x)
        return x[:, self.cfg.prefix :]
