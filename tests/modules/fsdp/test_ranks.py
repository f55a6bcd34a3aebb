"""Bounds over two real gloo ranks equal those of one process that sees all tokens."""

from functools import partial

import torch
import torch.distributed as dist
from tests.builders import adaptive, module, random_policy, stale_batch
from tests.commands import start_ranks

from bapo_lightning.modules.token_tables import token_table
from bapo_lightning.ranks.collectives import count_over_ranks
from bapo_lightning.ranks.launch import free_port


def halves(batch):
    return batch.split(10**6, batch.response_mask.float())


def choose_on_rank(rank, port, path):
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    made = module(random_policy(), adaptive(target=0.52))
    (micro_batch,) = halves(stale_batch(made.policy, seed=rank))
    with torch.no_grad():
        search = made.bound_rule.choose([token_table(made.policy, micro_batch, 0)])
    counts = count_over_ranks(rank + 1, 10, device=torch.device("cpu"))
    torch.save({"search": list(search), "counts": counts}, f"{path}/{rank}.pt")
    dist.destroy_process_group()


def test_two_ranks_choose_the_bounds_that_one_process_would(tmp_path):
    port = free_port()
    start_ranks(partial(choose_on_rank), args=(port, str(tmp_path)), nprocs=2)
    made = module(random_policy(), adaptive(target=0.52))
    tables = [
        token_table(made.policy, halves(stale_batch(made.policy, seed=rank))[0], 0).detach()
        for rank in range(2)
    ]
    whole = made.bound_rule.choose(tables)
    assert float(whole.high) > 1.2 or float(whole.low) > 0.6, "the case must move the bounds"
    for rank in range(2):
        found = torch.load(tmp_path / f"{rank}.pt")
        assert [float(value) for value in found["search"][:2]] == [float(whole.low), float(whole.high)]
        assert found["counts"] == (3, 20)
