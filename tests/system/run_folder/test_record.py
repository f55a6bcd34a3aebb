"""Reading run folders back: what kills and resumes leave behind, and what is not a run."""

import json

import pytest
from tests.report.synthetic_runs import sample

from bapo_lightning.system.errors import DataError
from bapo_lightning.system.run_folder.record import newest_rows, read_config, read_rollouts, read_run


def test_a_run_is_read_with_its_config_manifest_and_rows(make_run):
    rows = [{"step": 0, "train/reward": 0.5}, {"step": 1, "train/reward": 0.75}]
    record = read_run(make_run(rows=rows, seed=3))
    assert record.config["seed"] == 3
    assert record.manifest["algorithm"] == "bapo"
    assert record.name == "bapo-replay-s3-20260101"
    assert record.series("train/reward") == ([0, 1], [0.5, 0.75])


def test_a_torn_last_line_is_skipped_and_counted(make_run):
    folder = make_run(rows=[{"step": 0, "train/reward": 0.5}])
    with (folder / "metrics.jsonl").open("ab") as stream:
        stream.write(b'{"step": 1, "train/rew\xc3')
    record = read_run(folder)
    assert record.rows == [{"step": 0, "train/reward": 0.5}]
    assert record.unreadable_lines == 1


@pytest.mark.parametrize("line", [
    "[1, 2]", '{"train/reward": 0.5}', '{"step": "one"}', '{"step": 1}{"step": 2}', "[" * 100_000,
], ids=["list", "no step", "text", "two", "deep"])  # fmt: skip
def test_a_line_that_is_no_row_is_counted(make_run, line):
    folder = make_run(rows=[{"step": 0}])
    (folder / "metrics.jsonl").write_text(f'{{"step": 0}}\n{line}\n{{"step": 3}}\n')
    record = read_run(folder)
    assert [row["step"] for row in record.rows] == [0, 3]
    assert record.unreadable_lines == 1


def test_values_that_are_absent_null_or_not_finite_are_left_out_of_a_series(make_run):
    values = [0.5, None, float("nan"), float("inf"), True, "text"]
    rows = [{"step": step, "train/grad_norm": value} for step, value in enumerate(values)]
    record = read_run(make_run(rows=[*rows, {"step": 6}, {"step": 7, "train/grad_norm": 2}]))
    assert record.series("train/grad_norm") == ([0, 4, 7], [0.5, 1.0, 2.0])


def test_a_resume_replaces_the_updates_it_did_again(make_run):
    first = [{"step": step, "train/reward": 0.1} for step in range(5)]
    again = [{"step": step, "train/reward": 0.9} for step in (2, 3)]
    record = read_run(make_run(rows=first + again))
    assert record.series("train/reward") == ([0, 1, 2, 3], [0.1, 0.1, 0.9, 0.9])
    assert record.rolled_back_rows == 3


def test_the_newest_rows_are_read_from_the_end_alone(make_run):
    rows = [{"step": step, "train/reward": 0.5} for step in range(40)]
    folder = make_run(rows=rows)
    assert newest_rows(folder) == rows
    some = newest_rows(folder, num_bytes=100)
    assert 1 <= len(some) < 5 and some == rows[-len(some) :]
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 40, "train/rew')  # which is being written
    assert newest_rows(folder)[-1] == rows[-1]
    assert newest_rows(folder / "nowhere") == []


def test_two_lines_of_one_update_make_one_row(make_run):
    record = read_run(make_run(rows=[{"step": 4, "train/reward": 0.5}, {"step": 4, "val/sums/avg@8": 0.25}]))
    assert record.rows == [{"step": 4, "train/reward": 0.5, "val/sums/avg@8": 0.25}]
    assert record.rolled_back_rows == 0


def test_what_is_no_run_is_refused_with_what_it_lacks(make_run, tmp_path):
    folder = make_run()
    (folder / "metrics.jsonl").unlink()
    assert read_run(folder).rows == []  # one whose first update is not done
    with pytest.raises(DataError, match="does not exist"):
        read_run(tmp_path / "nowhere")
    with pytest.raises(DataError, match=r"no manifest\.json and no config\.yaml"):
        read_run(tmp_path)


@pytest.mark.parametrize(("name", "content", "complaint"), [
    ("manifest.json", '{"algorithm": "ba', "not valid JSON"),
    ("manifest.json", "[" * 100_000, "is not valid JSON"),
    ("manifest.json", "[]", "must hold a JSON object, got a list"),
    ("config.yaml", "a: [1", "not valid YAML"),
    ("config.yaml", "", "must hold a mapping, got a NoneType"),
])  # fmt: skip
def test_a_corrupt_file_is_named(make_run, name, content, complaint):
    folder = make_run()
    (folder / name).write_text(content)
    with pytest.raises(DataError, match=f"{name}.* {complaint}"):
        read_run(folder)


def test_what_a_record_holds_can_be_written_whatever_was_recorded(make_run, capsys):
    folder = make_run()
    row = json.dumps(sample(response="\N{GRINNING FACE} \ud800|")).replace("|", "\u2028")
    (folder / "rollouts.jsonl").write_text(f"{row}\n[1]\n7\n{'[' * 100_000}\n{row[:20]}")
    manifest = (folder / "manifest.json").read_text()
    (folder / "manifest.json").write_text(manifest.replace('"bapo"', '"ba\\ud800po"'))
    wanted = [sample(response="\N{GRINNING FACE} \ufffd\u2028")]
    assert read_rollouts(folder) == wanted == read_rollouts(folder)
    told = capsys.readouterr().err
    assert told.count("warning: ") == 1 and "rollouts.jsonl, line 2 is not a row" in told and "2 more" in told
    assert read_run(folder).manifest["algorithm"] == "ba\ufffdpo"


BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{chr(98 + n)}: &{chr(98 + n)} [{', '.join(['*' + chr(97 + n)] * 9)}]\n" for n in range(9)
)


@pytest.mark.parametrize(
    "config", [BOMB, f"{BOMB}algorithm: {{name: *j}}\n", "a: &a [*a]", "a: &a {b: 1}\nc: {<<: *a}"]
)
def test_no_alias_is_followed(make_run, config):
    folder = make_run()
    (folder / "config.yaml").write_text(config)
    for read in (read_run, read_config):
        with pytest.raises(DataError, match=r"it has an alias, \*NAME"):
            read(folder)


@pytest.mark.parametrize("name", ["config.yaml", "manifest.json", "metrics.jsonl", "ledger.jsonl"])
def test_a_link_to_what_is_no_file_is_one_sentence(make_run, name):
    folder = make_run()
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to("/proc/self/mem")
    with pytest.raises(DataError, match="Input/output error"):
        read_run(folder)
