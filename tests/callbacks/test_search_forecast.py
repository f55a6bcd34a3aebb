"""What a run says about its search after the first minibatch."""

import pytest
from tests.configuration.compositions import validated
from tests.token_tables import table

from bapo_lightning.callbacks.search_forecast import forecast


@pytest.mark.parametrize(
    ("algorithm", "advantages", "said"),
    [
        ("bapo", [1.0, -1.0, -1.0, -1.0], "of positive tokens about 0.25, target 0.4: it will usually run"),
        ("bapo", [1.0, 1.0, -1.0], "tokens about 0.67, target 0.4: it will usually rest at [0.60"),
        ("bapo_rest", [1.0, 1.0, -1.0], "it will usually rest at [0.80, 1.20]"),
        ("bapo", [2.0, -3.0], "it will move between [0.60, 1.20] and [0.90, 3.00]"),
        ("bapo_authors_code", [1.0, 1.0, -1.0], "ratio of positive tokens about 2.00, target 1: it will"),
        ("bapo", [0.0, 0.0], "no sample of the first minibatch has an advantage"),
    ],
)  # fmt: skip
def test_the_forecast_compares_the_natural_share_with_the_target(algorithm, advantages, said):
    rule = validated(f"algorithm={algorithm}", "algorithm.positive_share_target=0.4").algorithm.bounds.make()
    assert said in forecast(rule, table(advantages))
