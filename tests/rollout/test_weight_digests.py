import pytest
import torch
from tests.builders import random_policy
from tests.rollout.contract import SomeWeights

from bapo_lightning.rollout import weight_digests
from bapo_lightning.rollout.engine import FACTOR_MARK, Wanted
from bapo_lightning.rollout.weight_digests import SentWeights, added, drawn_columns, summed


def digest(name, weight, seed=3):
    return summed(weight_digests.part_digests({name: weight_digests.drawn_part(name, weight, seed)}).items())


def test_fused_sharded_and_padded_weights_have_the_digest_of_the_whole():
    query, key = torch.randn(12, 40), torch.randn(8, 40)
    whole = added([digest("a.q.weight", query), digest("a.k.weight", key)])
    assert digest("a.qk.weight", torch.cat([query, key, torch.zeros(5, 40)])) == whole
    rows = [digest("a.qk.weight", torch.cat([query[part], key[part]])) for part in (slice(4), slice(4, None))]
    assert added(rows) == whole
    drawn = drawn_columns(40, 3)
    halves = []
    for first in (0, 20):
        places = [place for place, column in enumerate(drawn) if first <= column < first + 20]
        held = query[:, first : first + 20][:, [drawn[place] - first for place in places]]
        halves.append(summed([("a.q.weight", weight_digests.column_digest(held, places))]))
    assert added(halves) == digest("a.q.weight", query)


def test_the_smallest_change_and_an_exchange_of_columns_show_and_precisions_that_hold_a_value_agree():
    weight = torch.randn(6, 9).bfloat16()
    assert digest("a.b.weight", weight) == digest("a.b.weight", weight.float())
    seen = drawn_columns(9, 3)
    changed, exchanged = weight.clone(), weight.clone()
    changed[5, seen[-1]] = torch.nextafter(weight[5, seen[-1]], torch.tensor(9.0).bfloat16())
    exchanged[:, seen[:2]] = weight[:, [seen[1], seen[0]]]
    assert digest("a.b.weight", changed) != digest("a.b.weight", weight) != digest("a.b.weight", exchanged)
    assert digest("a.b.weight", torch.zeros(2, 9)) == digest("a.b.weight", -torch.zeros(2, 9)) == {"a": 0}


def test_digests_made_together_are_those_made_one_by_one(monkeypatch):
    monkeypatch.setattr(weight_digests, "TOGETHER", 50)
    shapes = [(3, 40), (7,), (0, 40), (2, 40), (9, 4), (1,), (5, 2, 40), (0,), (12, 40)]
    weights = {f"a.{number}.weight": torch.randn(shape) for number, shape in enumerate(shapes)}
    parts = {name: weight_digests.drawn_part(name, weight, 3) for name, weight in weights.items()}
    together = weight_digests.part_digests(parts)
    assert together.keys() == parts.keys()
    assert all(together[name] == weight_digests.column_digest(*part) for name, part in parts.items())


@pytest.mark.parametrize("width", [1, 5, 8, 9, 5000])
def test_other_syncs_look_at_other_columns(width):
    drawn = [drawn_columns(width, seed) for seed in range(4)]
    assert all(len(set(columns)) == min(8, width) and max(columns) < width for columns in drawn)
    assert (len({tuple(columns) for columns in drawn}) > 1) == (width > 8)


def test_groups_are_the_modules_around_fused_layers_and_one_unknown_weight_takes_its_group_out():
    for name, group in {
        "self_attn.qkv_proj.base_layer.weight": "self_attn", "self_attn.q_proj.bias": "self_attn",
        f"mlp.up_proj{FACTOR_MARK}A.weight": "mlp, adapters",
    }.items():  # fmt: skip
        assert weight_digests.group_of(f"model.layers.0.{name}") == f"model.layers.0.{group}"
    one = torch.tensor(1)
    pairs = [("a.q.weight", one), ("a.norm.weight", None), ("b.q.weight", one), ("b.k.weight", one)]
    assert summed(pairs) == {"b": 2}


def test_what_was_sent_is_remembered_under_the_columns_of_its_own_sync():
    policy = random_policy()
    sent = SentWeights(policy, next_seed=1)
    for _ in sent.named_weights():
        pass
    first = sent.digests()
    sent.next_seed, sent.source = 2, SomeWeights([])
    for _ in sent.named_weights(Wanted("adapters")):
        pass
    assert sent.seed == 1 and sent.digests() == first
    sent.source = policy
    for _ in sent.named_weights(Wanted(dtype="float32")):
        pass
    assert sent.seed == 2 and sent.digests().keys() == first.keys() and sent.digests() != first
