"""Token tables of all ranks: what is sent, and that it arrives as it was."""

from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from lightning import Callback
from lightning.pytorch.callbacks import LambdaCallback, ModelCheckpoint
from tests.builders import adaptive, module, random_policy
from tests.commands import start_ranks
from tests.configuration.compositions import algorithms_with, composed
from tests.token_tables import Recording, table

from bapo_lightning.callbacks.monitors.bounds import forecast
from bapo_lightning.callbacks.monitors.entropy import EntropyMonitor
from bapo_lightning.callbacks.monitors.monitor import Monitor
from bapo_lightning.callbacks.monitors.training import StalenessMonitor
from bapo_lightning.callbacks.writers import (
    ConsoleLogger,
    RolloutWriter,
    TokenWriter,
    token_columns,
    token_records,
)
from bapo_lightning.configuration.targets import Target
from bapo_lightning.modules import token_tables
from bapo_lightning.modules.bound_rules import FixedBounds
from bapo_lightning.objectives.bounds import BoundSearch, contributions, positive_shares
from bapo_lightning.objectives.corrections.step_size import ess_step_scale
from bapo_lightning.objectives.objective import prepares, token_loss
from bapo_lightning.objectives.picks import ORDERED_BY, first_of, random_order
from bapo_lightning.objectives.token_table import NAMES, concatenate, needed_by, reads
from bapo_lightning.system.errors import ConfigError, TrainingError
from bapo_lightning.system.ranks.launch import free_port

SIZES = {0: [5, 2], 1: [], 2: [4]}  # tokens of each rank's micro-batches
ALL = (*NAMES, "step")  # of a table whose objective needs steps
BOUNDS = BoundSearch(torch.tensor(0.8), torch.tensor(1.2), torch.tensor(0.4), torch.tensor(True))


def tables_of(rank):
    """Numbers that no other row has, NaN and infinities among them."""
    made = []
    for place, size in enumerate(SIZES[rank]):
        row = torch.arange(size) + 1_000_000 * rank + 1000 * place
        number = (row / 7).sin()
        made.append(
            table(
                number, number.exp(), logp=-number.abs(), entropy=number.square(), age=row % 5, position=row,
                sequence=2_000_000_000 + row, group=row // 3 % 4, origin=row % 4, step=row // 2,
            )
        )  # fmt: skip
    return made


def everything():
    return [each for rank in SIZES for each in tables_of(rank)]


class Sums:
    """Prepares a number of each token, from a column on demand as well, and one of the update."""

    @reads("advantage", "sequence", "high", "step")
    def prepare(self, table):
        own = table.advantage + table.sequence.sin() + table["step"] + table.high.isinf()
        return {"own": own, "of_update": own.mean()}


class Picks:
    """Prepares a draw that depends on all tokens of the update."""

    @reads(*ORDERED_BY, "count", "logp")
    def prepare(self, table):
        return {"picked": first_of(random_order(table), table.count > 0, 0.3, table.count)}


def exchange(rank, port, path):
    """Does on one rank what the tests look at."""
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=len(SIZES))
    sent, gather = [], dist.gather

    def counted(values, *rest):
        sent.append(values.numel() * values.element_size())
        gather(values, *rest)

    dist.gather = counted
    own, device = tables_of(rank), torch.device("cpu")
    # Only rank 0's columns count: others may have callbacks that do not know what rank 0's know.
    gathered = token_tables.gather_tables(own, ("age", "origin") if not rank else ())
    whole = token_tables.gather_tables(own, NAMES)
    read, start = token_tables.gather_columns(Sums().prepare, own, device)
    found = {
        "gathered": gathered and gathered.columns, "whole": whole and whole.columns, "read": read.columns,
        "start": start, "sent": sent, "sums": token_tables.prepared_for_update(Sums(), own, BOUNDS, 3),
        "picks": token_tables.prepared_for_update(Picks(), own, BOUNDS, 3),
        "scale": token_tables.step_scale_of_update(lambda each: each.ratio.mean(), own),
    }  # fmt: skip
    torch.save(found, f"{path}/{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    path = tmp_path_factory.mktemp("ranks")
    start_ranks(exchange, args=(free_port(), str(path)), nprocs=len(SIZES))
    return [torch.load(path / f"{rank}.pt", weights_only=False) for rank in SIZES]


def assert_same(found, expected):
    assert found.keys() == expected.keys()
    for name, column in expected.items():
        assert found[name].dtype == column.dtype, name
        assert torch.equal(found[name].nan_to_num(9.0), column.nan_to_num(9.0)), name


def test_rank_0_alone_gets_the_rows_of_all_ranks_in_their_order_to_the_bit(ranks):
    assert_same(ranks[0]["whole"], concatenate(everything(), ALL))
    assert ranks[1]["whole"] is ranks[2]["whole"] is None


def test_columns_that_nobody_on_rank_0_reads_are_not_sent(ranks):
    assert_same(ranks[0]["gathered"], concatenate(everything(), ("age", "origin")))
    assert ranks[1]["gathered"] is ranks[2]["gathered"] is None
    widest = sum(SIZES[0])  # the others fill theirs up
    for found in ranks:
        assert found["sent"] == [4 * columns * widest for columns in (2, len(ALL))]


def test_every_rank_reads_the_whole_update_even_one_without_tokens(ranks):
    ratio = torch.cat([each.ratio for each in everything()])
    for rank, found in enumerate(ranks):
        assert_same(found["read"], concatenate(everything(), needed_by(Sums().prepare)))
        assert found["start"] == sum(sum(SIZES[before]) for before in range(rank))
        assert found["scale"] == float(ratio.mean())
    assert token_tables.prepared_for_update(lambda table: table.ratio, everything(), BOUNDS, 4) == [{}] * 4


@pytest.mark.parametrize(
    ("name", "objective", "column"),
    [("sums", Sums(), "own"), ("sums", Sums(), "of_update"), ("picks", Picks(), "picked")],
)
def test_prepared_columns_are_those_of_one_process_and_finite_in_blank_micro_batches(
    ranks, name, objective, column
):
    alone = [part[column] for part in token_tables.prepared_for_update(objective, everything(), BOUNDS, 3)]
    own = [part[column] for rank, sizes in SIZES.items() for part in ranks[rank][name][: len(sizes)]]
    assert len(own) == len(alone) and all(map(torch.equal, own, alone))
    for rank, sizes in SIZES.items():
        blank = [part[column] for part in ranks[rank][name][len(sizes) :]]
        assert len(blank) == 3 - len(sizes)
        assert all(value.dim() == 0 and value.isfinite() for value in blank)


def test_callbacks_say_what_they_read_and_only_silent_ones_from_elsewhere_may_read_all():
    class Silent(Callback):
        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            pass

    class Modest(Silent):
        needs = frozenset({"ratio"})

    class Measuring(Monitor):
        def measure(self, update):
            return {}

    def read(*callbacks):
        return token_tables.columns_read(SimpleNamespace(callbacks=callbacks))

    nothing = (ModelCheckpoint(), Callback(), ConsoleLogger(every=1), TokenWriter("folder", every=0))
    assert read(*nothing) == set()
    assert read(*nothing, Modest(), StalenessMonitor()) == {"ratio", "age", "origin"}
    for silent in (Silent(), Measuring(), LambdaCallback(on_train_batch_end=lambda *_: None)):
        assert read(Modest(), silent) == set(NAMES)


@pytest.mark.parametrize(("every", "due"), [(2, [True, False, True]), (1, [True] * 3)])
def test_a_writer_reads_nothing_between_its_writes(every, due):
    rollouts, tokens = RolloutWriter("folder", every, num_groups=1), TokenWriter("folder", every)
    for index, is_due in enumerate(due):
        for writer in (rollouts, tokens):
            writer.on_train_batch_start(None, None, None, index)
        assert bool(rollouts.needs) == is_due and bool(tokens.needs) == ((index + 1) % every == 0)


def test_a_column_that_does_not_exist_is_an_error_before_training():
    class Wrong(Callback):
        needs = frozenset({"entropi"})

    made = module(random_policy(), FixedBounds(0.8, 1.2))
    made._fabric, made._trainer = None, SimpleNamespace(callbacks=[Wrong()], precision="32-true")
    with pytest.raises(ConfigError, match=r"Wrong\.needs has entropi, .* did you mean entropy\?"):
        made.setup("fit")


def test_reading_a_column_without_asking_is_one_clear_error():
    class Greedy(EntropyMonitor):
        needs = frozenset({"logp", "entropy"})

    (tokens,) = tables_of(2)
    outputs = {"tokens": tokens, "version": 1, "bounds": [], "metrics": {}}
    made = module(random_policy(), FixedBounds(0.8, 1.2))
    message = "Greedy reads the column behaviour_logp of the token table without declaring it; add it to"
    with pytest.raises(TrainingError, match=message):
        Greedy().on_train_batch_end(None, made, outputs, SimpleNamespace(global_batch=None), 0)

    class Hasty:
        @reads("ratio")
        def prepare(self, table):
            return {"own": table.ratio * table.weight}

    class Blind:
        @reads("log_z")
        def prepare(self, table):
            return {"own": table["log_z"]}

    with pytest.raises(TrainingError, match=r"Hasty\.prepare reads the column weight"):
        token_tables.prepared_for_update(Hasty(), [tokens], BOUNDS, 1)
    with pytest.raises(TrainingError, match="no column log_z; an objective that reads it must list it in"):
        token_tables.prepared_for_update(Blind(), [tokens], BOUNDS, 1)
    with pytest.raises(TrainingError, match="a callback reads the column slope"):
        _ = token_tables.gather_tables([tokens], {"ratio"}).slope


def test_functions_of_callbacks_and_corrections_need_the_columns_that_they_read():
    readers = {
        token_columns: token_columns, token_records: lambda found: list(token_records([], found, None)),
        positive_shares: lambda found: positive_shares(found, "rollout_prob"),
        contributions: lambda found: forecast(adaptive(), found), ess_step_scale: ess_step_scale,
    }  # fmt: skip
    for function, read in readers.items():
        found = Recording(concatenate(everything(), NAMES))
        read(found)
        assert found.read == needed_by(function), function


@pytest.mark.parametrize("algorithm", algorithms_with("objective", prepares))
def test_an_objective_prepares_from_the_columns_that_it_asks_for(algorithm):
    objective = Target(composed(f"algorithm={algorithm}")["algorithm"]["objective"]).make()
    found = Recording(concatenate(everything(), NAMES))
    objective.prepare(found)
    assert found.read == needed_by(objective.prepare)


@pytest.mark.parametrize(("objective", "kind"), [
    (lambda found: found.advantage.sum(), r"a tensor of shape \[\]"), (lambda found: 1.0, "float"),
])  # fmt: skip
def test_an_objective_gives_one_value_for_each_token(objective, kind):
    bounds = SimpleNamespace(low=torch.tensor(0.8), high=torch.tensor(1.2))
    with pytest.raises(ConfigError, match=f"returned {kind} for 2 tokens; return one value for each"):
        token_loss(table([1.0, -1.0]), bounds, {}, objective)
