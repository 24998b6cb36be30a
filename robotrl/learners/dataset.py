"""Read a run's dataset and check it against the sim and the policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from robotrl.datasets.agreement.agree import agree
from robotrl.datasets.agreement.doubts import Doubt
from robotrl.datasets.reader import Dataset, read_dataset
from robotrl.errors import ConfigError
from robotrl.learners.learner import Setup
from robotrl.spec import Spec, VecSim, privileged
from robotrl.spec.json_fields import name_values
from robotrl.transforms import Transform

KEYS = "algo.dataset_keys"
"""Name of the setting that renames columns."""


def read_for(
    setup: Setup,
    keys: Sequence[str],
    specs: Mapping[str, Spec],
    sim: VecSim,
    inputs: Sequence[Transform] = (),
) -> Dataset:
    """Read the dataset of a run, and check it against the sim and the policy.

    Args:
        setup: setup with a dataset.
        keys: `dataset_keys` of the algorithm, "key=column" each.
        specs: specs of the observations to read.
        sim: sim of the policy; its privileged arrays have to agree as well, where the dataset has them.
        inputs: input transforms (normalization) of a policy that was trained before.

    Raises:
        ConfigError: there is no dataset, or it contradicts the sim; see `agree`.
        DataError: it cannot be read, or is doubtful; see `read_dataset` and `agree`.
    """
    if setup.dataset is None:
        raise ConfigError("dataset is not given: expected the directory of one (make one: robotrl demos)")
    dataset = read_dataset(setup.dataset)
    if sim.control_dt_s is None:
        told = f"it is recorded at {dataset.fps:g} Hz, and the sim states no control rate (its option control_dt_s)"
        dataset = replace(dataset, doubts=(*dataset.doubts, Doubt(told, grave=False)))
    return agree(
        dataset,
        specs,
        sim.action_spec,
        sim.control_dt_s,
        columns=name_values(keys, KEYS),
        field=KEYS,
        beside={key: sim.observation_spec[key] for key in privileged(sim) if key not in specs},
        inputs=inputs,
        accept=setup.accept_data,
    )
