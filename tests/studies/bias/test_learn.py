"""Learning in a tree on batches of an older policy: weights, lags, and runs that are kept."""

from functools import partial
from itertools import islice

import torch

from bapo_lightning.modules.schedules import linear_warmup
from studies.bias.learn import gradient, learn, seeded
from studies.bias.measure import stale_of, truth_of
from studies.bias.population import slopes
from studies.exact.enumerated import tree
from studies.exact.train import Protocol
from studies.map.__main__ import main
from studies.map.exact import method_of
from studies.map.jobs import composed
from studies.map.plan import read_map

WORLD = seeded(tree(5, depth=4, need=3), [2, 4])
LAG = read_map(["map=lag"])
METHODS = {name: method_of(composed(LAG, name)) for name in ("grpo", "token", "sequence_uncut")}


def rewards(name, lag):
    sgd = partial(torch.optim.SGD, lr=4.0)
    warm = partial(linear_warmup, warmup_updates=1)
    protocol = Protocol(sgd, warm, max_grad_norm=100.0, num_updates=16, group_size=64, lag=lag)
    return learn(WORLD, METHODS[name], protocol, [2, 4])


def test_weights_matter_on_old_data_alone_and_a_seed_is_the_same_whatever_is_next_to_it():
    fresh = rewards("grpo", 0)
    assert fresh.shape == (2, 2) and (fresh[:, 1] > fresh[:, 0]).all()
    torch.testing.assert_close(rewards("sequence_uncut", 0), fresh)
    assert (rewards("sequence_uncut", 6) - rewards("token", 6)).abs().min() > 1e-3


def test_a_large_batch_has_the_gradient_that_enumeration_expects():
    path = list(islice(WORLD.ascent(WORLD.start, 4.0), 9))
    size, method = 200_000, METHODS["token"]
    found = gradient(WORLD, method, path, size, [torch.Generator().manual_seed(seed) for seed in (0, 1)])
    truth = truth_of(WORLD, path[-1], path[0])
    expected = WORLD.pull(
        slopes(method, stale_of(WORLD, path, 8, 1.0), truth.advantage, truth.frequency).logits
    )
    assert (torch.cosine_similarity(found.flatten(1), expected) > 0.999).all()


def test_runs_that_are_kept_are_not_made_again(tmp_path, capsys):
    settings = [
        *("map=lag", f"kept={tmp_path / 'kept.jsonl'}", "only=[grpo,token,sequence]", "processes=1"),
        *("seeds=2", "num_updates=4", "measure_every=2", "worlds.tree_old.axes.batch=[32]"),
        "verdict.collapses=[{name: fall, claim: they do, methods: [token, sequence], where: {lag: [12]}}]",
        "worlds.tree.axes={learning_rate: [0.1], staleness: [1], lag: [12], batch: [32]}",
    ]
    pages = []
    for name in ("one", "two"):
        assert main([*settings, f"output={tmp_path / name}"]) == 0
        pages.append((tmp_path / name / "verdict.md").read_text())
    assert "[8/8]" in (text := capsys.readouterr().out) and text.count("] tree") == 8
    assert pages[0] == pages[1] and "0 of 4 runs collapsed, 0.00 to 0.84" in pages[0]
    assert main([*settings, f"output={tmp_path / 'three'}", "num_updates=6"]) == 2
    assert "is kept in" in capsys.readouterr().err
