"""Random updates of a small linear policy on several gloo ranks: under a guess they have the gradient of a
plain loss under the true bounds, however many samples the guess misjudged on each rank.
"""

import random

import pytest
import torch
import torch.distributed as dist
from tests.builders import adaptive
from tests.commands import start_ranks
from tests.modules.test_speculation import RULES

from bapo_lightning.modules.speculation import misjudged, speculate
from bapo_lightning.objectives.bounds import BoundSearch
from bapo_lightning.objectives.objective import clip, token_loss
from bapo_lightning.objectives.token_table import table_of
from bapo_lightning.system.ranks.launch import free_port

CASES = 80
WORDS, WIDTH = 7, 5
LARGE = 6  # tokens of a micro-batch of samples that are done again


def micro_batch(generator, number, is_empty):
    """Features, actions, behaviour log-probs, advantages, weights and samples of 1 to 12 tokens."""
    size = int(torch.randint(1, 13, (1,), generator=generator))
    features = torch.randn(size, WIDTH, generator=generator)
    actions = torch.randint(0, WORDS, (size,), generator=generator)
    behaviour = -2 + 0.7 * torch.randn(size, generator=generator)
    advantages = torch.randn(size, generator=generator) - 0.3
    weights, samples = torch.full((size,), (not is_empty) / 60), 100 * number + torch.arange(size) // 3
    return features, actions, behaviour.clamp_max(-1e-3), advantages, weights, samples


def table_under(weights, micro_batch):
    features, actions, behaviour, advantages, share, samples = micro_batch
    logp = (features @ weights).log_softmax(-1).gather(1, actions[:, None])[:, 0]
    zeros = torch.zeros_like(actions)
    places = {**dict.fromkeys(("age", "group", "position"), zeros), "sequence": samples}
    ones = torch.ones_like(share)
    known = {"entropy": 0 * share, "count": ones, "advantage": advantages, "weight": share}
    return table_of(logp, behaviour, **places, **known)


def case(seed, rank):
    """Policy, micro-batches of this rank, rule and guess. Ranks differ only in their micro-batches."""
    shared, own = random.Random(seed), torch.Generator().manual_seed(1000 * seed + rank)
    weights = torch.randn(WIDTH, WORDS, generator=torch.Generator().manual_seed(seed))
    batch = [micro_batch(own, number, shared.random() < 0.1) for number in range(shared.randint(3, 6))]
    rule = adaptive(**RULES[shared.choice(list(RULES))])
    low, high = (torch.tensor(float(shared.choice(list(grid)))) for grid in (rule.lows, rule.highs))
    return weights, batch, rule, BoundSearch(low, high, low, low > 0)


def gradient_of(weights, run):
    """Gradient of all ranks after a function of a leaf has made it."""
    leaf = weights.clone().requires_grad_()
    found = run(leaf)
    dist.all_reduce(leaf.grad)
    return leaf.grad, found


def gathered(batch, samples):
    """Micro-batches of these samples, as many on every rank, and the number of those that are not blank."""
    rows = [torch.cat(columns) for columns in zip(*batch, strict=True)]
    wanted = torch.isin(rows[-1], torch.tensor(samples, dtype=torch.long))
    own = list(zip(*(column[wanted].split(LARGE) for column in rows), strict=True)) if samples else []
    most = torch.tensor(len(own))
    dist.all_reduce(most, dist.ReduceOp.MAX)
    blank = tuple(column[:1] for column in batch[0][:4]), (torch.zeros(1), torch.zeros(1, dtype=torch.long))
    return own + [blank[0] + blank[1]] * (int(most) - len(own)), len(own)


def check_case(seed, rank, ranks):
    """Numbers of misjudged samples by rank, after the gradient was compared with the plain one."""
    weights, batch, rule, guess = case(seed, rank)
    tables = [table_under(weights, each) for each in batch]
    past = rule.past
    bounds = rule.choose(tables)
    rule.past = past

    def plain(leaf):
        for each in batch:
            token_loss(table_under(leaf, each), bounds, {}, clip)[0].backward()

    def guessed(leaf):
        own = lambda each: table_under(leaf, each), rule.choose, clip, lambda loss, is_last: loss.backward()
        return speculate(batch, len(batch), guess, *own, lambda samples: gathered(batch, samples))

    wanted, _ = gradient_of(weights, plain)
    found, part = gradient_of(weights, guessed)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-6)
    again = misjudged(tables[:-1], guess, bounds, clip)
    tokens = torch.tensor(sum(int(each[-1].eq(sample).sum()) for each in batch for sample in again))
    counts = torch.zeros(ranks, dtype=torch.long)
    counts[rank] = len(again)
    for each in (tokens, counts):
        dist.all_reduce(each)
    assert part.redone == int(tokens)
    return tuple(counts.tolist())


def on_rank(rank, ranks, port, folder):
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=ranks)
    torch.set_num_threads(1)
    found = [check_case(seed, rank, ranks) for seed in range(CASES)]
    torch.save(found, folder / f"{rank}.pt")
    dist.destroy_process_group()


@pytest.mark.parametrize("ranks", [2, 3])
def test_random_updates_have_the_gradient_of_the_true_bounds_on_every_number_of_ranks(ranks, tmp_path):
    start_ranks(on_rank, args=(ranks, free_port(), tmp_path), nprocs=ranks)
    counts = torch.load(tmp_path / "0.pt")
    uneven = [each for each in counts if 0 < min(each) < max(each)]
    assert len(uneven) >= 5, "ranks that misjudged different numbers, none of them 0"
