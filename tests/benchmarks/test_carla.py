"""The bench of CARLA's adapter at tiny size."""

import pytest

import tests.kits.carla_kit as kit
from benchmarks.carla import bench
from benchmarks.carla.losses import KINDS, faults

kit.needs_carla()


def test_faults_are_of_all_kinds_and_the_same_for_a_seed():
    found = faults(20, 3)
    assert len(found) == 20 and found == faults(20, 3) != faults(20, 4)
    assert {one[0].rpartition(":")[0] for one in found} == set(KINDS)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_training_beside_faults_gives_the_same_numbers(tmp_path):
    found = bench.losses(2, 256, tmp_path)
    assert found["lost_servers"].value == 2
    assert found["different_weights"].value == found["different_scalars"].value == 0


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_cost_of_a_step_is_measured_beside_a_bare_client(tmp_path):
    (figure,) = bench.cost("vector", 3, 2, tmp_path).values()
    assert figure.unit == "ms a step" and figure.low <= figure.value <= figure.high
    assert "100 actors" in figure.note


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_agreement_is_told_by_channel(tmp_path):
    found = bench.agreement(1, (2,), tmp_path)
    assert found["agreement_road"].value > 0.95 and found["agreement_vehicles"].value > 0.95
