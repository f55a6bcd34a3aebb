"""Strategies that a run can name, with each torch that the package accepts."""

import pytest
import torch.nn.parallel

from bapo_lightning.ranks.strategies import data_parallel


def of_torch_2_11(module, broadcast_buffers=True): ...


def of_torch_2_13(module, broadcast_buffers=None, forward_sync_buffers=None): ...


@pytest.mark.parametrize(
    ("wrapper", "name"),
    [(of_torch_2_11, "broadcast_buffers"), (of_torch_2_13, "forward_sync_buffers")],
)
def test_ddp_leaves_buffers_alone_by_the_name_that_torch_has_for_it(wrapper, name, monkeypatch):
    monkeypatch.setattr(torch.nn.parallel, "DistributedDataParallel", wrapper)
    strategy = data_parallel(gradient_as_bucket_view=True)
    assert strategy._ddp_kwargs == {name: False, "gradient_as_bucket_view": True}


def test_an_option_of_ddp_is_passed_on():
    assert data_parallel(bucket_cap_mb=10)._ddp_kwargs["bucket_cap_mb"] == 10
