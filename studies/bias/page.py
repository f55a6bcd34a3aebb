"""Tables, picture and page of the atlas.

    claims.csv   every claim in every cell                 atlas.csv   every method in the headline's world
    cosines.csv  every method in every other world         paths.csv   how far each age is

The parts of docs/results/bias.md between `<!-- NAME: make map MAP=bias -->` and `<!-- end -->` are made of
these files; `publish=docs/results` writes them again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from bapo_lightning.system.run_folder.text_file import write_text
from studies.bias.claims import Judged, Nearest, Tables, judge, map_of_nearest
from studies.bias.picture import draw_atlas
from studies.bias.plan import AtlasConfig
from studies.commands import claim_lines, read_csv, write_results

Csv = tuple[list[str], list[list[str]]]
MEANS = ("cosine", "own")  # bounded quantities; medians are given of others, since a few starts are far out
MEDIANS = ("bias", "bias_along", "noise", "effective", "low", "high")
EQUALLY_FAR = (("tree-rate=0.25-early", "64"), ("tree-rate=1-early", "16"), ("tree-rate=4-early", "4"))
FARTHER = "GRPO [0.8, 1.2]"


def write_pages(config: AtlasConfig, tables: Tables) -> list[Path]:
    """Writes everything into the output, and into the result pages if `publish` names them."""
    judged, nearest = judge(config, tables), map_of_nearest(config, tables[config.head])
    parts = {
        "claims": claim_table(config, judged),
        "nearest": nearest_table(config, nearest),
        "atlas": atlas_table(config, tables),
        "cosines": cosine_table(config, tables),
        "paths": path_rows(config, tables),
    }
    output = Path(config.output)
    written = write_results(
        "bias",
        config.output,
        config.publish,
        parts,
        lambda folder: draw_atlas(config, tables, nearest, folder / "atlas.png"),
        page_parts,
    )
    text = "\n\n".join(page_parts(output).values())
    return [*written, write_text(output / "atlas.md", f"# Stale gradients\n\n{text}\n")]


def page_parts(folder: Path) -> dict[str, str]:
    """The parts of the page, by name."""
    claims = claim_lines(read_csv(folder / "claims.csv"))
    return {"claims": claims, "beyond": "\n".join(f"- {line}" for line in _beyond(folder))}


def _beyond(folder: Path) -> Iterator[str]:
    """Sentences about BAPO's bounds, and about paths on which the policy is equally far."""
    atlas = [row for row in read_csv(folder / "atlas.csv") if row["name"] == "bapo_50" and row["age"] != "0"]
    if atlas:
        ages = ", ".join(row["age"] for row in atlas)
        bounds = [f"[{float(row['low']):.2f}, {float(row['high']):.2f}]" for row in atlas]
        yield f"BAPO 0.5's bounds at ages {ages}: {', '.join(bounds)} (medians)."
    moved = {(row["path"], row["age"]): row["KL of an answer"] for row in read_csv(folder / "paths.csv")}
    pairs = [
        (moved[path, age], row[f"age {age}"])
        for path, age in EQUALLY_FAR
        if (path, age) in moved
        for row in read_csv(folder / "cosines.csv")
        if (row["path"], row["method"]) == (path, FARTHER)
    ]
    if len(pairs) == len(EQUALLY_FAR):
        far, cosines = (", ".join(column) for column in zip(*pairs, strict=True))
        yield (
            "Distance decides, not age: rates 0.25, 1 and 4 are equally far at ages 64, 16 and 4 (KL of an "
            f"answer {far}); GRPO's cosines there are {cosines}."
        )


def claim_table(config: AtlasConfig, judged: Sequence[Judged]) -> Csv:
    heads = ["claim", "in words", "world", "quantity", "method", "against", "age", "batch"]
    labels = {name: entry.label for name, entry in config.methods.items()}
    rows = [
        [
            *(item.claim.name, item.claim.claim, config.place_of(item.claim).name, item.claim.quantity),
            *(labels[item.claim.method], labels.get(item.against, item.against)),
            *(f"{item.age}", "" if item.batch is None else f"{item.batch}"),
            *(item.difference.seen(3, "+"), item.claim.expected, item.verdict),
            "yes" if item.is_true else "no",
        ]
        for item in judged
    ]
    return [*heads, "difference", "expected", "verdict", "came true"], rows


def nearest_table(config: AtlasConfig, nearest: Sequence[Nearest]) -> Csv:
    rows = [
        [
            f"{item.age}",
            f"{item.batch}",
            config.methods[item.method].label,
            f"{item.error:.3f}",
            f"{item.as_good}",
        ]
        for item in nearest
    ]
    return ["age", "batch", "nearest", "error", "others within what matters"], rows


def atlas_table(config: AtlasConfig, tables: Tables) -> Csv:
    """Every method at every age of the headline's world."""
    methods, rows = tables[config.head], []
    for name, entry in (config.methods | config.own).items():
        is_estimated = name in config.own
        for number, age in enumerate(config.ages):
            values = {key: methods[name][key][number] for key in methods[name]}
            means = {key: _text(np.mean(values[key])) for key in MEANS}
            medians = [_text(np.median(values[key])) for key in MEDIANS]
            errors = [_text(each) for each in values["error"].mean(-1)]
            squared = [_text(each) for each in np.median(values["squared_error"], -1)]
            exact = [means["cosine"], *medians, *errors, *squared]
            shown = [""] * len(exact) if is_estimated else exact
            rows.append([name, entry.label, entry.family, f"{age}", *shown, means["own"]])
    heads = ["name", "method", "family", "age", "cosine", *MEDIANS]
    heads += [f"error, batch {size}" for size in config.batches]
    heads += [f"squared error at the fresh scale, batch {size}" for size in config.batches]
    return [*heads, "cosine with own advantages"], rows


def cosine_table(config: AtlasConfig, tables: Tables) -> Csv:
    """Mean cosine of every method at every age of every path."""
    rows = [
        [place.name, entry.label, *(_text(each) for each in measured[name][quantity].mean(1))]
        for place, measured in tables.items()
        for quantity, methods in (("cosine", config.methods), ("own", config.own))
        for name, entry in methods.items()
    ]
    return ["path", "method", *(f"age {age}" for age in config.ages)], rows


def path_rows(config: AtlasConfig, tables: Tables) -> Csv:
    """How far the policy is from the behaviour policy at each age, means over starts."""
    rows = [
        [place.name, f"{age}", *(_text(methods["path"][key][number].mean()) for key in keys)]
        for keys in [("moved", "kl", "reward", "norm")]
        for place, methods in tables.items()
        for number, age in enumerate(config.ages)
    ]
    return ["path", "age", "mean |log ratio| of a token", "KL of an answer", "reward", "|grad J|"], rows


def _text(value: float) -> str:
    """Three decimals, or three digits of large numbers; nothing for NaN."""
    number = float(value)
    if np.isnan(number):
        return ""
    return f"{number:.3f}" if abs(number) < 100 else f"{number:.3g}"
