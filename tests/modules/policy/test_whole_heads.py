"""Attention where kernels take no heads of keys that several heads of queries share."""

import pytest
import torch
from tests.modules.policy.test_packing import batch_of, loss_and_gradients, policies, rollouts

from bapo_lightning import precision


@pytest.mark.parametrize("number", [0, 1])  # padded, packed
def test_where_kernels_need_whole_heads_none_is_asked_to_share_them_and_gradients_are_the_same(
    number, tmp_path, monkeypatch
):
    policy, batch = policies("qwen2", tmp_path)[number], batch_of(rollouts())
    loss, expected = loss_and_gradients(policy, batch, 1000)
    asked, kernel = [], torch.nn.functional.scaled_dot_product_attention

    def note(query, key, value, **options):
        asked.append((query.shape[1], key.shape[1], value.shape[1], options.get("enable_gqa", False)))
        return kernel(query, key, value, **options)

    monkeypatch.setattr("torch.nn.functional.scaled_dot_product_attention", note)
    monkeypatch.setattr(precision, "needs_whole_heads", lambda states: states.dtype is torch.float32)
    whole_loss, found = loss_and_gradients(policy, batch, 1000)
    assert set(asked) == {(4, 4, 4, False)}
    assert whole_loss == pytest.approx(loss, rel=1e-6)
    for name, gradient in expected.items():
        assert (found[name] - gradient).norm() <= 1e-6 * gradient.norm() + 1e-8, name
