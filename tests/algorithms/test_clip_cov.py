import pytest
from tests.algorithms.by_hand import exact, prepared, pulls
from tests.token_tables import table

from bapo_lightning.algorithms.clip_cov import ClipCov
from bapo_lightning.configuration.compose import compose_run

# Covariances 3, 0.5, 3 and 0.5, without the last row, which stands for no token.
COVERING = {
    "advantages": exact(2, 1, -2, -1, 9), "behaviour_logp": exact(-1.0, -2.0, -4.0, -3.0, -99.0),
    "count": exact(1, 1, 1, 1, 0), "high": 1.2,
}  # fmt: skip


def kept(made, **options):
    return ClipCov(**options).prepare(made)["kept"].tolist()


def test_one_token_at_least_is_drawn_among_those_of_high_covariance():
    drawn = {tuple(kept(table(**COVERING, age=age, low=0.8))) for age in range(20)}
    assert drawn == {(0, 1, 1, 1, 1), (1, 1, 0, 1, 1)}, "either of two, in different updates"
    made = table(**COVERING)
    assert kept(made, share=0.5) == [0, 1, 0, 1, 1]
    assert kept(made, share=1.0, low=0.4) == [0, 0, 0, 0, 1]
    assert kept(made, share=1.0, low=3.5) == [1] * 5
    assert kept(made, share=1.0, high=2.9) == [1] * 5


def test_none_is_drawn_that_is_clipped_already():
    made = table(**COVERING, logp=exact(-0.5, -2.0, -4.0, -3.0, -99.0), low=0.8)
    assert kept(made, share=0.5) == [1, 1, 0, 1, 1]
    objective = ClipCov(share=0.5)
    assert objective(prepared(objective, made)).tolist() == pytest.approx([2.4, 1, 0, -1, 9])


@pytest.mark.parametrize(
    ("algorithm", "bounds"), [("clip_cov", (0.0, 2.0)), ("kl_cov", (0.0, 1e9)), ("m2po", (0.0, 1e9))]
)
def test_bounds_are_those_of_the_authors_scripts(algorithm, bounds):
    chosen = compose_run(["run_folder=unused", f"algorithm={algorithm}"])["algorithm"]["bounds"]
    assert (chosen["low"], chosen["high"]) == bounds


def test_at_the_authors_bounds_a_token_of_ratio_one_and_a_half_has_its_gradient():
    made = table(exact(1.0), exact(1.5), low=0.0, high=2.0, prepared={"kept": exact(1)})
    assert ClipCov()(made).tolist() == [1.5] and pulls(ClipCov(), made) == pytest.approx([1.5])
