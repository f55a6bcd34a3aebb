"""The page of one run: its numbers, its texts, and that it follows a run that goes on."""

import fcntl
import json
import re
import socket
import subprocess
import sys
import time
from dataclasses import replace
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from tests.report.synthetic_runs import sample, write_run

from bapo_lightning.report.metrics import PANELS
from bapo_lightning.system.run_folder import record as record_module
from bapo_lightning.system.run_folder.record import read_run
from bapo_lightning.tools.commands.view import addresses, main
from bapo_lightning.tools.view.page import View, alarms_on, bound_choices, phases, samples_by_update

HOSTILE = "</script><script>alert(1)</script><b>"
TURNS = [{"by": "policy", "text": "[1+1]", "calls": 2, "errors": 1}]
TURNS += [{"by": "environment", "text": "2"}, {"by": "policy", "text": "2#"}]


def row(step, **metrics):
    low, high = (0.6, 1.2) if step % 4 else (0.9, 3.0)
    times = {"time/step_seconds": 2.0, "time/update_seconds": 1.0, "time/rollout_seconds": 0.5}
    return {
        "step": step, "train/reward": step / 40, "bapo/clip_low": low, "bapo/clip_high": high,
        "train/grad_norm": 0.0 if step == 3 else 2.0, "progress/samples": 8 * step,
        "alarms/gradient": step == 39, **times, **metrics,
    }  # fmt: skip


def tokens(count, **more):
    known = {"ratio": [1.5] * count, "age": [3] * count, "clipped": [1] * count}
    return {"text": ["x"] * (count + 2), "first": 2, **known, **more}


def write_lines(path, rows):
    path.write_text("".join(json.dumps(entry) + "\n" for entry in rows))


@pytest.fixture
def run(tmp_path):
    rows = [row(step, **({"val/sums/avg@4": 0.5} if step % 8 == 7 else {})) for step in range(40)]
    folder = write_run(tmp_path / "outputs/quickstart/run", rows, staleness=8)
    texts = [sample(step, name) for step in (0, 20) for name in ("2+3", "1+4")]
    write_lines(folder / "rollouts.jsonl", texts)
    return folder


@pytest.fixture
def page(run):
    """The page of the run with other texts, or with other metrics."""

    def written(*rollouts, metrics=None):
        write_lines(run / "rollouts.jsonl", rollouts)
        if metrics:
            write_lines(run / "metrics.jsonl", metrics)
        return View(run).write(5.0)[0].read_text()

    return written


def embedded(page, name):
    return json.loads(re.search(rf'id="{name}">(.*?)</script>', page, re.DOTALL)[1])


def samples(page):
    return embedded(page, "samples")[0]["rows"]


def charts_of(page):
    return {chart["name"]: chart for chart in embedded(page, "charts")}


def test_the_page_has_every_curve_and_the_texts(run):
    path, is_alive = View(run).write(5.0)
    page = path.read_text()
    assert path == run / "view.html" and not is_alive and "location.reload" not in page
    charts, places = embedded(page, "charts"), embedded(page, "places")
    assert [chart["title"] for chart in charts][:6] == [panel.title for panel in PANELS.values()][:6]
    training, held_out = (places[curve["x"]] for curve in charts[0]["curves"])
    assert training["updates"] == list(range(1, 41)) and training["samples"][-1] == 312
    assert held_out["updates"] == [8, 16, 24, 32, 40] and charts[0]["curves"][1]["mean"] == [0.5] * 5
    norm = places[charts[4]["curves"][0]["x"]]
    assert charts[4]["log"] and 4 not in norm["updates"]  # an update without gradient has no logarithm
    assert [entry["step"] for entry in embedded(page, "samples")] == [0, 20]
    assert "finished" in page


@pytest.mark.parametrize(("counts", "on"), [
    ([], []), ([1], ["gradient"]), ([0], []), ([0, 1], ["gradient"]), ([1, 1], []), ([1, 2], ["gradient"]),
])  # fmt: skip
def test_the_banner_names_the_alarms_that_went_on_in_the_last_update(counts, on):
    assert alarms_on([{"alarms/gradient": count} for count in counts]) == on


def test_tokens_are_coloured_up_to_a_limit(page):
    text = page(sample(tokens=tokens(4)), sample(problem="1+4", tokens=tokens(1200)))
    first, second = samples(text)
    assert first["tokens"] == tokens(4)
    assert len(second["tokens"]["ratio"]) == len(second["tokens"]["age"]) == 998
    assert second["tokens"]["text"][-1] == " ... (202 tokens more)"
    assert 'id="colour"' in text


def test_texts_are_data_and_never_part_of_the_page(page):
    turns = [TURNS[0], {"by": "environment", "text": HOSTILE}, TURNS[2]]
    text = page(sample(response=HOSTILE), sample(turns=turns))
    assert "<script>alert" not in text
    assert samples(text)[0]["response"] == samples(text)[1]["turns"][1]["text"] == HOSTILE


def test_bounds_are_counted_as_pairs_and_times_add_up(run):
    record = read_run(run)
    narrow, wide = {"low": 0.6, "high": 1.2, "share": 0.75}, {"low": 0.9, "high": 3.0, "share": 0.25}
    assert bound_choices(record) == [narrow, wide]
    assert dict(phases(record)) == {"rollout": 0.25, "update": 0.5, "other": 0.25}
    beside = replace(record, config={"regime": {"async_generation": True}})
    assert dict(phases(beside)) == {"update": 0.5, "other": 0.5}
    assert phases(replace(record, rows=[])) == []


def test_what_has_no_panel_is_on_the_page_under_its_title_or_else_its_name(page):
    charts = charts_of(page(metrics=[row(step, **{"my/own": step, "rollout/cut": 1}) for step in range(4)]))
    assert charts["rollout/cut"]["title"] == "Responses at the token limit"
    assert charts["my/own"]["title"] == "my/own" and charts["my/own"]["curves"][0]["mean"] == [0, 1, 2, 3]
    assert "train/reward" not in charts and "turns" not in charts


def test_of_many_updates_texts_of_some_are_shown_and_long_ones_are_cut():
    found = samples_by_update([sample(step, response="x" * 5000) for step in range(0, 500, 5)])
    assert len(found) == 40 and (found[0]["step"], found[-1]["step"]) == (0, 495)
    assert found[0]["rows"][0]["response"].endswith(" ... (1000 characters more)")


def test_a_run_without_updates_or_texts_has_a_page(tmp_path):
    page = View(write_run(tmp_path / "run", [])).write(5.0)[0].read_text()
    assert "No texts were recorded yet" in page and embedded(page, "charts")[0]["curves"] == []


def test_a_run_with_turns_has_curves_of_them(page):
    measured = {"mean": 1.5, "max": 3, "calls_mean": 0.5, "error_share": 0.1, "void_share": 0.2}
    measured |= {"cut_share": 0.3, "positive_share_1": 0.4, "positive_share_2": 0.6}
    found = {f"turns/{name}": value for name, value in measured.items()}
    charts = charts_of(page(metrics=[row(step, **found) for step in range(4)]))
    curves = {name: charts[name]["curves"] for name in ("turns", "faults", "turn_shares")}
    assert [curve["mean"][-1] for curve in curves["turns"]] == [1.5, 0.5, 3]
    assert [curve["label"] for curve in curves["faults"]] == ["failed calls", "void turn", "cut"]
    assert [curve["label"] for curve in curves["turn_shares"]] == ["turn 1", "turn 2"]
    assert len({curve["colour"] for curve in curves["turn_shares"]}) == 2
    assert charts["turn_shares"]["rules"] == [0.45]  # the target of the search


def test_a_response_with_turns_is_shown_turn_by_turn_and_elsewhere_nothing_is(page):
    entry = sample(turns=TURNS, tokens=tokens(1, feedback_at=[1]))
    text = page(entry, sample())
    assert samples(text) == [entry, sample()]
    assert "const conversation" in text and ".turn.environment" in text
    assert "the environment's replies" in text
    without = page(sample(tokens=tokens(1)))
    assert all(words not in without for words in ("turn 1", "environment", "conversation"))
    assert not any("turn" in name for name in charts_of(without))


def test_what_policy_and_environment_wrote_is_cut_each_by_itself(page):
    written = [("policy", 3000), ("environment", 4500), ("policy", 1200), ("environment", 10), ("policy", 5)]
    (shown,) = samples(page(sample(turns=[{"by": by, "text": "x" * count} for by, count in written])))
    left_out = [turn["text"].lstrip("x") for turn in shown["turns"]]
    assert left_out == ["", *(f" ... ({count} characters more)" for count in (500, 200, 10, 5))]


def test_turns_after_the_last_coloured_token_are_left_out(page):
    known = tokens(1498, feedback_at=[400, 1000, 1400])
    (shown,) = samples(page(sample(turns=TURNS, tokens=known)))
    assert shown["tokens"]["feedback_at"] == [400, 1000]
    assert shown["tokens"]["text"][1000:] == [" ... (500 tokens more)"]


def test_it_follows_a_run_as_long_as_a_process_holds_it(run):
    manifest = json.loads((run / "manifest.json").read_text())
    (run / "manifest.json").write_text(json.dumps(manifest | {"status": "running"}))
    (run / ".lock").touch()
    assert View(run).write(5.0)[1] is False and "killed" in (run / "view.html").read_text()
    command = [sys.executable, "-m", "bapo_lightning.tools.commands.view", str(run), "--every", "0.1"]
    with (run / ".lock").open("a") as lock:
        fcntl.lockf(lock, fcntl.LOCK_EX)
        viewer = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert viewer.stdout.readline() == f"open {(run / 'view.html').as_uri()}\n"
        assert "location.reload" in (run / "view.html").read_text()
        first = (run / "view.html").stat().st_mtime_ns
        deadline = time.monotonic() + 60
        while (run / "view.html").stat().st_mtime_ns == first:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert viewer.poll() is None
        (run / "manifest.json").write_text(json.dumps(manifest))
        assert viewer.wait(60) == 0
    viewer.stdout.close()
    assert "location.reload" not in (run / "view.html").read_text()


def long_rows(count, start=0):
    for step in range(start, count):
        age = step % 8
        ages = {"staleness/age_mean": age / 2, "staleness/age_max": age}
        spike = {"train/grad_norm": 195.4} if step == 1387 else {}
        spike |= {"my/own": -77.0 if step == 2001 else 1.0}
        yield row(step, **{"train/reward": 5.0 if step == 2503 else 0.5, **ages, **spike})


def test_curves_of_a_long_run_keep_their_extremes_and_say_what_they_show(page):
    text = page(metrics=[*long_rows(4000)])
    charts = charts_of(text)
    (norm,), (reward, *_), (own,) = (charts[name]["curves"] for name in ("grad_norm", "reward", "my/own"))
    places = embedded(text, "places")
    assert max(norm["mean"]) == 195.4
    assert places[norm["x"]]["updates"][norm["mean"].index(195.4)] == 1388
    assert max(reward["upper"]) == 5.0 > max(reward["mean"]) and min(own["lower"]) == -77.0
    assert all(len(curve["mean"]) <= 720 for chart in charts.values() for curve in chart["curves"])
    assert "the smallest and the largest value of every 12 updates" in text
    assert "show every update" not in text
    short = page(metrics=[*long_rows(480)])
    assert "bounds and mismatches show every update" in short
    assert len(charts_of(short)["bounds"]["curves"][0]["mean"]) == 480


@pytest.mark.parametrize("count", [40, 480, 4000])
def test_ages_are_drawn_as_they_are(page, count):
    mean, largest = charts_of(page(metrics=[*long_rows(count)]))["age"]["curves"]
    assert (min(mean["mean"]), max(mean["mean"])) == (0.0, 3.5)
    assert (min(largest["mean"]), max(largest["mean"])) == (0.0, 7.0)
    assert "lower" not in mean
    if count == 480:
        assert largest["mean"] == [float(step % 8) for step in range(480)]


def test_a_page_that_is_written_again_reads_what_was_added(run, monkeypatch):
    read = []
    loaded = record_module._loaded
    monkeypatch.setattr(record_module, "_loaded", lambda text: read.append(text) or loaded(text))
    write_lines(run / "metrics.jsonl", long_rows(1000))
    view = View(run)
    view.write(5.0)
    assert len(read) == 1004  # rows, and texts
    for now in (1001, 1004):
        with (run / "metrics.jsonl").open("a") as file:
            file.writelines(json.dumps(entry) + "\n" for entry in long_rows(now, now - 3))
            file.write('{"step": 17')  # torn, as it is being written
        read.clear()
        text = view.write(5.0)[0].read_text()
        assert len(read) == 3
        (run / "metrics.jsonl").write_text((run / "metrics.jsonl").read_text().removesuffix('{"step": 17'))
        assert text == View(run).write(5.0)[0].read_text()
    read.clear()
    view.write(5.0)
    assert not read


def test_a_page_follows_a_run_that_a_resume_cut_back(run):
    write_lines(run / "metrics.jsonl", long_rows(100))
    view = View(run)
    view.write(5.0)
    for kept, value in ((60, 0.25), (90, 0.75)):  # shorter, and as long as before
        rows = [*long_rows(kept), *(row(step, **{"train/reward": value}) for step in range(kept, 100))]
        write_lines(run / "metrics.jsonl", rows)
        text = view.write(5.0)[0].read_text()
        assert text == View(run).write(5.0)[0].read_text() and charts_of(text)["reward"]
    with (run / "metrics.jsonl").open("a") as file:  # without a cut: the later line counts
        file.writelines(json.dumps(row(step)) + "\n" for step in range(80, 95))
    text = view.write(5.0)[0].read_text()
    assert text == View(run).write(5.0)[0].read_text() and "update 95" in text


def test_it_is_served_to_this_machine_alone_and_nothing_else_is(run, capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main([str(run), "--serve", str(port)]) == 2
        assert f"--serve {port}: Address already in use; write another port" in capsys.readouterr().err
    assert "from your own machine" in addresses(View(run).write(5.0)[0], port)[1]
    base = f"http://127.0.0.1:{port}"
    page = urlopen(f"{base}/", timeout=30).read()
    assert page == (run / "view.html").read_bytes()
    (run / "view.html").write_text("newer")
    assert urlopen(f"http://localhost:{port}/", timeout=30).read() == b"newer"
    refused = [f"{base}/config.yaml", f"{base}/../config.yaml", f"{base}/.lock"]
    refused.append(Request(f"{base}/", headers={"Host": "somewhere.example"}))
    for request in refused:
        with pytest.raises(HTTPError, match="404"):
            urlopen(request, timeout=30)


def test_over_ssh_the_way_to_a_browser_is_shown(run, monkeypatch, capsys):
    monkeypatch.setenv("SSH_CONNECTION", "1")
    assert main([str(run)]) == 0
    assert "--serve 8080" in capsys.readouterr().out


def test_the_newest_of_several_runs_is_shown_and_none_is_a_sentence(run, tmp_path, capsys):
    assert main([str(tmp_path / "outputs/*/*"), "--once"]) == 0
    assert "quickstart/run/view.html" in capsys.readouterr().out
    assert main([str(tmp_path / "nowhere")]) == 2
    assert "nowhere', which does not exist" in capsys.readouterr().err
