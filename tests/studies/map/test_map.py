"""The maps, with two seeds and a few updates."""

import json
import subprocess

import pytest
from rich.console import Console
from tests.children import forked_children
from tests.configuration.small_commands import COMMANDS

from bapo_lightning.report.intervals import LEAST_VALUES
from bapo_lightning.system.errors import DataError
from studies import CONF
from studies.commands import CountBar, counted
from studies.map.__main__ import help_text, main
from studies.map.cells import MapCell, Measured, measured_file
from studies.map.plan import MapConfig, read_map, read_settings

SMALL = [
    "seeds=2", "gate_seeds=2", "num_updates=8", "processes=1", "drawn=[bapo_50]",
    "only=[grpo,wide_low,wide_high,end,bapo_50]", "worlds.table.world.num_contexts=8",
    "worlds.table.axes={learning_rate: [0.1], staleness: [2, 4], wrong_tokens: [9], key_prior: [0.1]}",
    "worlds.factored.world.num_classes=2",
    "worlds.factored.axes={learning_rate: [0.1], staleness: [2], wrong_tokens: [9]}",
]  # fmt: skip


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    """A folder with a small map."""
    folder = tmp_path_factory.mktemp("map") / "map"
    assert main([*SMALL, f"output={folder}"]) == 0
    return folder


def test_every_cell_is_measured_judged_and_drawn(drawn):
    results = json.loads((drawn / "map.json").read_text())
    found = [(entry["cell"]["world"], entry["cell"]["staleness"]) for entry in results]
    assert found == [("table", 2), ("table", 4), ("factored", 2)]
    figures = results[0]["figures"]
    assert {"fresh", "grpo", "bapo_50"} <= figures.keys()
    assert isinstance(results[0]["gate"]["is_passed"], bool)
    assert {"more", "less", "equal", "unresolved"} >= {each["verdict"] for each in results[0]["comparisons"]}
    assert all(0 < found["area"]["mean"] < 1 for found in figures.values())
    assert figures["grpo"]["rests"] is None and 0 <= figures["bapo_50"]["ends"] <= 1
    page = (drawn / "map.md").read_text()
    assert "World `table`" in page and "| BAPO 0.5 |" in page
    assert "gate: fresh - grpo" in (drawn / "map.csv").read_text().partition("\n")[0]
    assert all((drawn / name).stat().st_size > 10_000 for name in ("gap.png", "bapo_50.png"))


def test_fresh_data_serve_all_stalenesses_and_the_gate_has_seeds_of_its_own(drawn):
    options = ("wrong_tokens", 9), ("key_prior", 0.1)
    cells = (MapCell("table", 0.1, staleness, options) for staleness in (2, 4))
    one, other = (measured_file(drawn, cell, "fresh") for cell in cells)
    assert one == other and one.exists()
    assert Measured.read(one).area.shape == Measured.read(one, gate=True).area.shape == (2,)
    assert not (Measured.read(one).area == Measured.read(one, gate=True).area).any()


@pytest.mark.slow
def test_a_map_goes_on_and_refuses_other_settings(drawn, capsys):
    files = {path: path.stat().st_mtime_ns for path in drawn.rglob("*.npz")}
    next(iter(files)).unlink()
    assert main([*SMALL, f"output={drawn}"]) == 0
    assert f"1 of {len(files)} to compute" in capsys.readouterr().out
    assert main([*SMALL, f"output={drawn}", "group_size=4"]) == 2
    error = capsys.readouterr().err
    assert f"group_size=4: {drawn} began with 8" in error and "output=ANOTHER" in error


@pytest.mark.slow
@pytest.mark.drill
def test_a_map_of_training_runs_is_judged_by_held_out_reward_and_keeps_finished_runs(tmp_path, capsys):
    settings = [
        "map=locks", f"output={tmp_path / 'map'}",
        *("seeds=2", "gate_seeds=2", "num_updates=8", "measure_every=4", "problems_per_update=4"),
        *("gate=[]", "controls=[]", "drawn=[bapo_50]"), "only=[grpo,bapo_50]",
        "worlds.locks.axes={staleness: [4], scale.max_new_tokens: [10]}",
    ]  # fmt: skip
    with forked_children():
        assert main(settings) == 0
    (result,) = json.loads((tmp_path / "map/map.json").read_text())
    assert result["figures"].keys() == {"fresh", "grpo", "bapo_50"}
    assert all(0.1 < found["area"]["mean"] < 0.8 for found in result["figures"].values())
    assert 0 <= result["figures"]["bapo_50"]["ends"] <= 1 and result["figures"]["grpo"]["ends"] is None
    capsys.readouterr()
    next((tmp_path / "map/cells").rglob("bapo_50.npz")).unlink()
    assert main(settings) == 0
    assert "2 runs in" in (text := capsys.readouterr().out) and "2 finished before" in text


@pytest.mark.parametrize(("argument", "message"), [
    ("seeds", "seeds cannot be read; write KEY=VALUE"),
    ("sedes=3", "sedes is not an option; did you mean seeds?"),
    ("seeds=1", "seeds=1 must be"),
    ("gate=[nobody]", "gate names nobody, which is none of methods"),
    ("worlds.table.axes.staleness=[]", "worlds.table.axes.staleness"),
    ("worlds.table.world.num_context=3", "did you mean num_contexts?"),
    ("worlds.table.axes.popular=[0.5]", "did you mean popular_"),
    ("methods.grpo.set.algorithm=gprp", "gprp"),
    ("only=[grpo,bapo]", "only names bapo; write some of grpo, higher"),
    ("methods.grpo.set.algorithm=direct_advantage",
     "methods.grpo: algorithm=direct_advantage has a stage that gives advantages by the text of "
     "responses (step_advantages), and exact worlds have none"),
    ("map=lcoks", "map=lcoks is no map; write one of bias, exact, lag"),
    ("worlds.table.experiment=quickstart", "worlds.table must have either world or experiment"),
    ("seeds={", "seeds={ cannot be read (while parsing a flow node); write KEY=VALUE in YAML"),
    ("[0=1", "[0=1 cannot be read"),
    ("common=[1]", "common=[1] cannot be read (Cannot merge DictConfig with ListConfig"),
    ("methods=abc", "methods=abc must be a mapping"),
    ("methods.a/b={label: a, set: {algorithm: grpo}}", "methods.a/b must be letters, digits and"),
    ("group_size=1", "methods.grpo.set: scale.group_size=1 is refused by the advantages"),
    ("output=\udcff", "cannot be read"),
    ("only=5", "only=5 must be a list, or null"),
    ("only=[]", "methods names none; leave it out, or write one at least"),
    ("drawn=[grpo]", "drawn names grpo, the method that all others are compared with; leave it out"),
    ("controls=[grpo]", "controls names grpo, the method that all others"),
    ("measure_every=481", "measure_every=481 measures nothing of num_updates=480; write measure_every=480"),
    ("worlds.table.axes.staleness=[7]", "axes.staleness=7 does not divide num_updates=480"),
    ("worlds.table.axes.epochs=[7]", "axes.epochs=7 at staleness 8 does not divide num_updates=480"),
    ("verdict={endpoint: x, matters: 0.1, law: [{name: a, claim: b, method: nobody, expected: -1}]}",
     "verdict.law: a names nobody, which is none of methods"),
    ("worlds.table.axes.learning_rate=[-1]", "axes.learning_rate=-1 is no rate; write positive ones"),
    ("worlds.table.axes.wrong_tokens=[3, -1]", "worlds.table.world.wrong_tokens=-1 must be a whole number"),
    ("worlds.table.axes.key_prior=[0.1, 0.4]",
     "key_prior=0.4 and popular_prior=0.6 must be below 1 together"),
    ("worlds.factored.world.num_decisions=6", "right_tokens and wrong_tokens must be at least 6"),
    ("worlds.table.world._target_=torch.nn.Identity", "no studies.exact.world.ExactWorld"),
])  # fmt: skip
def test_wrong_input_is_one_error_before_anything_is_computed(argument, message, tmp_path, capsys):
    assert main([argument, f"output={tmp_path / 'map'}"]) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.rglob("*.npz"))


@pytest.mark.slow
def test_a_leaderboard_compares_chosen_methods(tmp_path, capsys):
    folder = tmp_path / "board"
    settings = [
        *("map=rivals", "only=[grpo,bapo_50,p3o]", f"output={folder}", "processes=1"),
        *("seeds=2", "gate_seeds=2", "num_updates=8", "worlds.table.world.num_contexts=8"),
        "worlds.table.axes={learning_rate: [0.1], staleness: [4], wrong_tokens: [9], key_prior: [0.1]}",
    ]
    assert main(settings) == 0
    (board,) = json.loads((folder / "leaderboard.json").read_text())
    assert {entry["method"] for entry in board["standings"]} == {"grpo", "bapo_50", "p3o", "fresh"}
    duels = [(duel["method"], duel["against"]) for duel in board["duels"]]
    assert duels == [("bapo_50", "grpo"), ("bapo_50", "p3o")]
    assert main([*settings[:1], "only=[grpo,higher]", *settings[2:]]) == 2
    assert "only leaves none of the duels" in capsys.readouterr().err


def test_jobs_are_counted_by_a_bar_or_by_lines(capsys):
    with counted("jobs", 10) as count:
        count("table  grpo")
    assert capsys.readouterr().out == "[ 1/10] table  grpo\n"
    bar = CountBar("jobs", 2)
    bar.count()
    Console(width=80).print(bar)
    assert "jobs 1/2 " in capsys.readouterr().out


def test_make_sweep_makes_a_leaderboard():
    command = ["make", "-n", "sweep", "SWEEP=rivals", "ARGS=seeds=9"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "-m studies.map map=rivals seeds=9" in done.stdout


def test_a_map_may_extend_another():
    rivals, locks = read_map(["map=rivals"]), read_map(["map=rivals_locks"])
    assert locks.methods == rivals.methods and locks.duels == rivals.duels
    assert list(locks.worlds) == ["locks"] and locks.common == {} and rivals.common


@pytest.mark.parametrize("name", [file.stem for file in (CONF / "maps").glob("*.yaml")])
def test_a_shipped_map_has_as_many_seeds_as_a_verdict_needs(name):
    config = read_settings([f"map={name}"])
    gate_seeds = config.gate_seeds if getattr(config, "gate", []) else config.seeds
    assert min(config.seeds, gate_seeds) >= LEAST_VALUES


def test_help_lists_every_map_with_what_it_is():
    usage, *lines = help_text().splitlines()
    assert usage == "usage: python -m studies.map [map=NAME] [KEY=VALUE ...]"
    for file in (CONF / "maps").glob("*.yaml"):
        assert any(len(line.split()) > 3 for line in lines if line.strip().startswith(f"{file.stem} ")), file


def test_make_fuzz_changes_every_key_of_a_map():
    assert COMMANDS["map"].values.keys() == {*MapConfig.model_fields, "map", "extends"}


@pytest.mark.parametrize("content", ["[1]", "a: [", "\x00", "a: !!python/object:x.Y {}"])
def test_a_damaged_file_of_settings_is_reported_with_its_name(content, tmp_path, capsys):
    (tmp_path / "map.yaml").write_text(content)
    assert main([*SMALL, f"output={tmp_path}"]) == 2
    error = capsys.readouterr().err
    assert "map.yaml" in error and "write output=ANOTHER/FOLDER" in error and "Traceback" not in error


@pytest.mark.parametrize("content", [b"", b"x", b"PK\x03\x04"])
def test_damaged_measurements_are_reported_with_their_name(content, tmp_path):
    file = tmp_path / "cell.npz"
    file.write_bytes(content)
    with pytest.raises(DataError, match=r"cell\.npz is damaged .*; remove it"):
        Measured.read(file)
