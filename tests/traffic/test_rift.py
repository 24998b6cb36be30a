"""RIFT's loss and schedule: only the head learns, a decision's better candidates become more probable."""

from __future__ import annotations

import pytest
import torch

from robotrl.errors import ConfigError
from robotrl.fn.advantage import group_relative
from robotrl.fn.planner.candidates import masked_log_softmax
from robotrl.sims.bev.traffic.learned.forward import TERMS
from robotrl.traffic.model import usable
from robotrl.traffic.rift import STYLES, RiftCfg, lr_at, rift_loss, weights_of
from tests.kits.traffic_kit import net_of
from tests.traffic.test_cloning import inputs_of


def test_the_published_weights() -> None:
    by_term = dict(zip(TERMS, weights_of(STYLES["published"]).tolist(), strict=True))
    assert by_term == pytest.approx(
        {
            "collision": -20.0,
            "collision_speed": -1.0,
            "off_road": -5.0,
            "comfort": -0.8,
            "alignment": 0.5,
            "centering": -0.6,
            "speed": 0.1,
            "time": -0.1,
            "passed_closed": -5.0,
            "near": 0.0,
        }
    )
    assert all(set(style) <= set(TERMS) for style in STYLES.values())


def test_the_learning_rate_rises_and_falls() -> None:
    cfg = RiftCfg(epochs=7, warmup_epochs=3, lr=3.0)
    rates = [lr_at(epoch, cfg) for epoch in range(7)]
    assert rates[:4] == pytest.approx([1.0, 2.0, 3.0, 3.0])
    assert rates[5] == pytest.approx(1.5) and rates[6] < rates[5]


def test_better_candidates_become_more_probable_and_only_the_head_learns() -> None:
    net, inputs, cfg = net_of(-2.0, 1.0), inputs_of(32), RiftCfg()
    valid = usable(inputs)
    returned = torch.randn(valid.shape, generator=torch.Generator().manual_seed(0))
    advantage = group_relative(returned, valid)
    with torch.no_grad():
        old = masked_log_softmax(net(inputs)[0], valid)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    optimizer = torch.optim.AdamW(net.head.parameters(), lr=1e-3)
    batch = {"inputs": inputs, "old_log_prob": old, "advantage": advantage}
    first = rift_loss(net, batch, cfg)
    assert float(first.ratio_error) < 1e-5
    for _ in range(60):
        optimizer.zero_grad()
        rift_loss(net, batch, cfg).loss.backward()
        optimizer.step()
    with torch.no_grad():
        now = masked_log_softmax(net(inputs)[0], valid)
    gain = ((now.exp() - old.exp()) * returned).masked_fill(~valid, 0.0).sum(dim=1).mean()
    assert float(gain) > 0.01
    changed = {name for name, value in net.state_dict().items() if not torch.equal(value, before[name])}
    assert changed and all(name.startswith("head.") for name in changed)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"style": "asertive"}, "did you mean 'assertive'"),
        ({"warmup_epochs": 20}, "warmup_epochs is 20"),
        ({"dual_clip": 0.5}, "dual_clip is 0.5"),
        ({"buffer": 0}, "buffer is 0"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        RiftCfg(**settings).check()  # type: ignore[arg-type]
