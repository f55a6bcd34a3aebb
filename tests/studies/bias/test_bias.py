"""The atlas: fresh data, exact weights, drawn batches, the figures of the probe, and the published page."""

from pathlib import Path

import numpy as np
import pytest
import torch

from studies.bias.command import composed_method
from studies.bias.measure import expectation, measure, of_batches, path_of, stale_of, truth_of
from studies.bias.page import page_parts
from studies.bias.population import expected_advantage, slopes
from studies.commands import with_parts
from studies.map.__main__ import main
from studies.map.plan import read_settings

ROOT = Path(__file__).resolve().parents[3]
RESULTS = ROOT / "docs" / "results"
TURNED = {"top_entropy", "steer"}  # fresh data too, since they drop or weigh tokens by their place
PROBE = {  # bias and cosine after 4, 16 and 64 updates, medians of 20 starts
    "reinforce": [(0.108, 0.995), (0.402, 0.932), (1.44, 0.53)],
    "token": [(0.082, 0.997), (0.315, 0.951), (0.98, 0.57)],
    "grpo": [(0.083, 0.997), (1.39, -0.28), (1.71, -0.39)],
    "geometric": [(0.095, 0.997), (0.363, 0.947), (1.07, 0.53)],
    "sequence_2": [(0.000, 1.000), (0.078, 0.998), (1.08, 0.21)],
    "sequence": [(0.0, 1.0), (0.0, 1.0), (0.0, 1.0)],
}


def measured(names, *options):
    config = read_settings(["map=bias", "claims=[]", "batches=[64]", "replicates=4", *options])
    methods = {name: composed_method(config, name, config.methods[name]) for name in names}
    return measure(config, config.head, methods, lambda name: None)


def test_every_algorithm_and_correction_is_measured_or_left_out_with_its_reason():
    config, kinds = read_settings(["map=bias"]), ("algorithm", "correction")
    shipped = {path.stem for kind in kinds for path in (ROOT / "conf" / kind).glob("*.yaml")}
    sets = [entry.set for entry in config.methods.values()]
    used = {each[kind] for each in sets for kind in kinds if kind in each}
    left_out = [name for names in config.left_out.values() for name in names]
    assert sorted([*used, *left_out]) == sorted(shipped - {"base"})


def test_the_figures_of_the_probe_are_found_again_and_whole_weights_have_no_bias():
    found = measured(PROBE, "ages=[0,4,16,64]")
    for name, expected in PROBE.items():
        medians = [np.median(found[name][key][1:], 1) for key in ("bias", "cosine")]
        np.testing.assert_allclose(np.stack(medians, 1), expected, rtol=0.1, atol=0.01, err_msg=name)
    assert found["sequence"]["bias"].max() < 1e-5
    assert np.median(found["reinforce"]["noise"][2]) == pytest.approx(6.0, rel=0.1)


@pytest.mark.slow
def test_fresh_data_gives_every_other_method_the_true_direction_and_no_bias():
    names = read_settings(["map=bias"]).methods
    found = measured(names, "ages=[0,1]", "seeds=2", "batches=[8]")
    assert {name for name in names if found[name]["cosine"][0].min() < 1 - 1e-9} == TURNED
    assert max(found[name]["bias"][0].max() for name in {*names} - TURNED) < 1e-6


def test_drawn_batches_have_the_bias_and_the_noise_of_the_sums():
    config = read_settings(["map=bias", "seeds=2"])
    world, path = path_of(config, config.places[-1])  # contexts share parameters, wrong answers are longer
    truth, stale = truth_of(world, path[8], path[0]), stale_of(world, path, 8, 1.0)
    for name in ("sequence_5", "gspo"):
        method = composed_method(config, name, config.methods[name])
        exact = expectation(method, stale, truth, slopes(method, stale, truth.advantage, truth.frequency))
        drawn = of_batches(method, stale, truth, 1024, 400)
        torch.testing.assert_close(drawn.along, exact.along, rtol=0.1, atol=0.02)
        torch.testing.assert_close(drawn.noise, exact.noise, rtol=0.15, atol=0)


def test_the_mean_advantage_over_groups():
    reward, value = torch.tensor([0.0, 1.0]), torch.tensor([[0.3, 0.3]], dtype=torch.float64)
    found = expected_advantage(lambda rewards: rewards - rewards.mean(1, keepdim=True), 4, reward, value)
    torch.testing.assert_close(found, 0.75 * (reward.double() - 0.3).unsqueeze(0))


def test_the_command_writes_tables_page_and_picture_and_measures_once(tmp_path, capsys):
    claim = "{name: a, claim: b, quantity: error, method: grpo, against: others, expected: less, ages: [8], "
    options = ["map=bias", "seeds=3", "ages=[0,8]", "batches=[8,32]", "replicates=4", f"output={tmp_path}"]
    options += ["worlds.tree.rates=[1.0]", "worlds.tree_longer=null", "worlds.factored=null"]
    options += [f"claims=[{claim}batches: [8]}}]", "worlds.factored_longer=null", "only=[grpo,sequence]"]
    assert main(options) == 0 == main(options)
    assert "0 of 4 to compute" in capsys.readouterr().out
    assert {"claims.csv", "atlas.png"} <= {path.name for path in tmp_path.iterdir()}
    assert "- b 0 of 1; +" in (tmp_path / "atlas.md").read_text()
    assert main([*options, "only=[grp]"]) == 2


def test_the_page_has_the_numbers_of_its_tables():
    page = (RESULTS / "bias.md").read_text()
    assert with_parts(page, "make map MAP=bias", page_parts(RESULTS / "bias")) == page, (
        'make map MAP=bias ARGS="publish=docs/results"'
    )
