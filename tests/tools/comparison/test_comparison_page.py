"""The page holds everything itself: it names no address, and what people wrote in their folders is text."""

import itertools
import json
import re
from html.parser import HTMLParser

import pytest
from tests.report.synthetic_runs import synthetic_run, write_run

from bapo_lightning.report.intervals import Interval
from bapo_lightning.report.metrics import EXPECTED, HIGH_RAISED
from bapo_lightning.report.run.console import duration_text
from bapo_lightning.tools.comparison import page as comparison_page
from bapo_lightning.tools.comparison.page import draw_comparison, interval_text, make_charts, render_page
from bapo_lightning.tools.comparison.settings import collect
from bapo_lightning.tools.comparison.table import compare
from bapo_lightning.tools.page.charts import coinciding

FETCHING = {"src", "srcset", "href", "xlink:href", "action", "formaction", "data", "poster", "background"}
FETCHING |= {"ping", "manifest", "style"}


class Page(HTMLParser):
    """Tags, what their attributes fetch, and the text of styles and scripts."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.fetched, self.ids = [], [], []
        self.inline = {"style": "", "script": "", "charts": "", "texts": "[]"}
        self.num_panels, self.text, self._open = 0, "", ""
        self.feed(text)
        self.charts = json.loads(self.inline["charts"])  # what the script draws
        self.texts = json.loads(self.inline["texts"].removeprefix("[]") or "[]")

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self._open = tag
        values = {name: value or "" for name, value in attributes}
        self.fetched += [(name, value) for name, value in values.items() if name in FETCHING]
        self.ids += [values["id"]] if "id" in values else []
        self.num_panels += values.get("class") == "panel"
        if values.get("type") == "application/json":
            self._open = values["id"]

    def handle_endtag(self, tag):
        self._open = ""

    def handle_data(self, data):
        if self._open in self.inline:
            self.inline[self._open] += data
        else:
            self.text += data


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folders = []
    for name, staleness, seed in itertools.product(("grpo", "bapo"), (1, 8), range(4)):
        folder = tmp_path_factory.mktemp("runs") / f"{name}-{staleness}-{seed}"
        folders.append(synthetic_run(folder, name, seed, 12, staleness=staleness))
    folders.append(write_run(tmp_path_factory.mktemp("runs") / "<b>mean<b>", [], "dapo", status="failed"))
    return Page(render_page(compare(collect(folders)), "A <title>", "make compare", "today"))


@pytest.mark.slow
def test_nothing_on_the_page_is_fetched_from_anywhere(page):
    addresses = [value for name, value in page.fetched if name != "style"]
    assert [value for value in addresses if not value.startswith(("#", "data:"))] == []
    styles = page.inline["style"] + " ".join(value for name, value in page.fetched if name == "style")
    assert [url for url in re.findall(r"url\(([^)]*)", styles) if not url.startswith("#")] == []
    assert "@import" not in styles and "//" not in styles
    script = page.inline["script"].replace("http://www.w3.org/2000/svg", "")  # a name, fetched by nobody
    assert not re.search(r"fetch|XMLHttpRequest|import|https?:", script)
    assert not {"iframe", "object", "embed", "base"} & set(page.tags)
    assert page.tags.count("script") == 2  # the numbers, and what draws them
    assert len(page.ids) == len(set(page.ids))
    referred = {value[1:] for name, value in page.fetched if value.startswith("#")}
    assert referred - set(page.ids) == set()


def test_every_quantity_has_a_panel_for_each_condition_with_the_numbers_of_its_curves(page):
    assert len(page.charts) == len(EXPECTED) * 2 == page.num_panels
    curves = page.charts[0]["curves"]
    assert [curve["label"] for curve in curves] == ["grpo", "bapo"]
    assert curves[0]["colour"] != curves[1]["colour"]
    assert {len(curves[0][name]) for name in ("mean", "lower", "upper")} == {12}
    assert [len(values) for values in curves[0]["runs"]] == 4 * [12]


def charts_of(page, metric):
    place = 2 * [row.name for row in EXPECTED].index(metric)
    return page.charts[place : place + 2]


def test_gradient_norms_have_a_logarithmic_axis_that_no_band_falls_through(page):
    for chart in charts_of(page, "train/grad_norm"):
        assert chart["log"] and chart["unit"] == "log scale" and chart["limits"][0] > 0
        assert all(min(curve["lower"]) > 0 for curve in chart["curves"])
    assert not any(chart["log"] for chart in charts_of(page, "train/reward"))


def test_bounds_are_shares_of_updates(page):
    grpo, bapo = charts_of(page, HIGH_RAISED)[0]["curves"]
    assert set(grpo["mean"]) == {0.0} and 0 < max(bapo["mean"]) <= 1
    assert min(bapo["lower"]) >= 0 and max(bapo["upper"]) <= 1
    assert "Upper bound raised" in page.text


def test_curves_can_be_drawn_over_what_their_updates_cost(page):
    places = page.charts[0]["curves"][0]["x"]
    assert set(places) == {"updates", "samples", "tokens"}  # these runs have no times
    assert places["updates"] == list(range(1, 13))
    assert all(values == sorted(values) and len(values) == 12 for values in places.values())


def test_names_of_folders_are_text_and_runs_left_out_are_named(page):
    assert "A <title>" in page.text and "<b>mean<b>" in page.text
    assert "16 of 17 runs compared" in page.text and "its status is 'failed' after 0 updates" in page.text


def test_a_page_with_one_run_that_lacks_most_metrics_is_made(make_run):
    folder = make_run("run", rows=[{"step": 0, "train/reward": 0.5}])
    page = Page(render_page(compare(collect([folder])), "One", "make compare", "today"))
    assert len(page.charts) == page.num_panels == 1
    assert list(page.charts[0]["curves"][0]["x"]) == ["updates"]
    assert "Not recorded by any run: Held-out accuracy, Policy entropy" in page.text
    assert "one seed only" in page.text


def test_below_four_seeds_single_runs_are_drawn_and_no_interval(make_run):
    for count in (1, 3, 4):
        rows = [{"step": step, "train/reward": 0.1 * step} for step in range(3)]
        own = {"rows": rows, "algorithm": "grpo"}
        folders = [make_run(f"{count}-{seed}", seed=seed, **own) for seed in range(count)]
        comparison = compare(collect(folders))
        (curve,) = make_charts(comparison, comparison.metrics[0])[0]["curves"]
        assert ("lower" in curve) == (count == 4) and len(curve["runs"]) == count
        assert ("interval" in draw_comparison(comparison).legends[0].get_title().get_text()) == (count == 4)


def test_lines_that_coincide_are_reported():
    steps, line = [0, 1, 2], [0.2, 0.5, 0.9]
    near = [value + 0.004 for value in line]
    two = {"a": (steps, line), "b": (steps, near)}
    lines = two | {"c": (steps, [0.2, 0.5, 0.8]), "d": (steps[:2], line[:2])}
    assert coinciding(lines, (0.0, 1.0), log=False) == [["a", "b"]]
    assert coinciding(two, (0.2, 0.9), log=True) == []
    zeros = {name: (steps, [0.0] * 3) for name in "xyz"}
    assert coinciding(zeros, (-1.0, 1.0), log=False) == [["x", "y", "z"]]


@pytest.mark.parametrize("count", [40, 1000])
def test_lines_coincide_on_the_axis_that_is_shown(make_run, count):
    folders = []
    for name, seconds in {"grpo": 1.0, "bapo": 1.6}.items():
        found = [{"step": n, "train/reward": n / count, "progress/samples": n} for n in range(count)]
        rows = [row | {"time/step_seconds": seconds} for row in found]
        folders.append(make_run(name, rows=rows, algorithm=name))
    comparison = compare(collect(folders))
    (chart,) = make_charts(comparison, comparison.metrics[0])
    assert chart["same"] == {
        "updates": [["grpo", "bapo"]], "samples": [["grpo", "bapo"]], "tokens": [], "minutes": [],
    }  # fmt: skip


ROLLOUT = {
    "problem": "1", "prompt": "1+1=", "gold": "2", "finish": "stop", "status": "wrong", "reward": 0.0,
    "advantage": 0.0, "num_tokens": 1, "versions": [0],
}  # fmt: skip


def test_texts_are_those_of_the_first_run_that_recorded_some(make_run):
    folders = []
    rows = [{"step": 0, "train/reward": 0.5}]
    for name, seed in itertools.product(("grpo", "bapo"), (0, 1)):
        folder = make_run(f"{name}-{seed}", rows=rows, algorithm=name, seed=seed)
        folders.append(folder)
        if seed or name == "bapo":
            text = {"response": f"<{name} {seed}>", "turns": [{"by": "policy", "text": "hm"}]}
            texts = [json.dumps(ROLLOUT | text | {"step": step}) + "\n" for step in range(9)]
            (folder / "rollouts.jsonl").write_text("".join(texts))
    page = Page(render_page(compare(collect(folders)), "Texts", "make compare", "today"))
    assert [entry["name"] for entry in page.texts] == ["grpo, seed 1", "bapo, seed 0"]
    for entry, text in zip(page.texts, ("<grpo 1>", "<bapo 0>"), strict=True):
        assert [update["step"] for update in entry["updates"]] == [0, 4, 8]
        assert {row["response"] for update in entry["updates"] for row in update["rows"]} == {text}
    assert "Texts of the policies" in page.text and "indented on grey" in page.text
    without = Page(render_page(compare(collect(folders[:1])), "None", "make compare", "today"))
    assert without.texts == [] and "Texts of the policies" not in without.text


def test_numbers_for_people():
    assert interval_text(Interval(0.9263, 0.0111, 5)) == "0.926 \N{PLUS-MINUS SIGN} 0.011"
    assert interval_text(Interval(-0.5, None, 1), signed=True) == "\N{MINUS SIGN}0.500"
    assert interval_text(None) == "\N{EN DASH}"
    shown = ["no test", "p < 0.001", "p = 0.012", "p = 0.46"]
    assert [comparison_page.p_text(value) for value in (None, 0.0001, 0.0123, 0.456)] == shown
    assert [duration_text(value) for value in (5.0, 75.0, 9000.0)] == ["5.0 s", "1 min 15 s", "2 h 30 min"]


NORMS, ACCURACIES = (0.1, 1.0, 1.0, 10.0), (0.9, 1.0, 1.0, 1.0)


def test_the_picture_has_intervals_in_the_scale_of_their_axis_and_says_the_seeds_once(make_run):
    folders = []
    for seed, (norm, accuracy) in enumerate(zip(NORMS, ACCURACIES, strict=True)):
        row = {"step": 0, "train/reward": 0.5, "train/grad_norm": norm, "val/sums/avg@4": accuracy}
        rows = [row | {"train/grad_norm": 70.0}, row | {"step": 1}]  # the largest is not the final one
        folders.append(make_run(f"run{seed}", rows=rows, algorithm="grpo", seed=seed))
    figure = draw_comparison(compare(collect(folders)))
    panels = {axes.get_title(loc="left"): axes for axes in figure.axes}

    def ends(axes):
        (bar,) = axes.containers
        ((low, high),) = (tuple(point[1] for point in part) for part in bar[2][0].get_segments())
        return low, high

    low, high = ends(panels["Gradient norm"])
    assert panels["Gradient norm"].get_yscale() == "log"
    assert 0 < low < 0.1 and low * high == pytest.approx(1.0)
    assert ends(panels["Held-out accuracy"])[1] == 1.0
    assert all(axes.get_ylabel().startswith("final: ") for axes in panels.values() if axes.containers)
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["grpo"]
    assert "over 4 seeds" in legend.get_title().get_text()
