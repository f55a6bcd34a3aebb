"""What an objective needs, and what it prepares, whatever it is made of."""

from functools import partial

import pytest
import torch
from tests.token_tables import table

from bapo_lightning.objectives.objective import clip, needs_of, prepares, remembers, scores_at_entry, slopes
from bapo_lightning.objectives.token_table import reads
from bapo_lightning.system.errors import ConfigError


@reads("entry_entropy", "mean_logp", "entry_mean_logp")
def at_entry(table, share, least):
    return table.ratio


class Own:
    needs = frozenset({"reference_logp", "log_z"})

    def prepare(self, table):
        return {}

    def __call__(self, table):
        return table.ratio


class Remembering(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("past", torch.zeros(()))

    def prepare(self, table):
        return self.remember(table, self.past)[0]

    def remember(self, table, past):
        return {}, past


def test_needs_are_known_through_options_and_of_classes_and_their_objects():
    with_options = partial(partial(at_entry, share=2.0), least=0.0)
    assert scores_at_entry(with_options) == ("entropy", "mean_logp")
    assert needs_of(with_options) == {"entry_entropy", "mean_logp", "entry_mean_logp"}
    assert needs_of(Own) == needs_of(Own()) == needs_of(partial(Own())) == {"reference_logp", "log_z"}
    assert scores_at_entry(Own()) == scores_at_entry(clip) == () and needs_of(clip) == frozenset()


def test_a_need_that_nothing_fulfils_is_refused():
    @reads("entropy_gradiant")
    def wrong(table):
        return table.ratio

    message = r"wrong\.needs has entropy_gradiant, which no objective gets: .*did you mean entropy_gradient\?"
    with pytest.raises(ConfigError, match=message):
        needs_of(partial(wrong))


def test_those_that_prepare_or_remember_are_distinguished_from_others():
    assert prepares(Own) and prepares(Own()) and prepares(Remembering()) and not prepares(clip)
    assert remembers(Remembering()), "its memory is seen though it is a buffer"
    assert not remembers(Own()) and not remembers(torch.nn.Identity()) and not remembers(None)


def test_slopes_see_what_was_prepared():
    made = table([1.0, -1.0], [1.5, 0.5], prepared={"factor": torch.tensor([2.0, 3.0])})
    found = slopes(lambda each: each["factor"] * each.ratio + each.log_ratio, made)
    assert found.tolist() == pytest.approx([2 + 1 / 1.5, 3 + 1 / 0.5])
