"""Problems of a table: a hub data set, a folder or files, read by a column mapping (group `problem_set`)."""

from __future__ import annotations

import glob
import os
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import datasets
import huggingface_hub

from bapo_lightning.data.problems.columns import (
    ColumnMapping,
    MissingField,
    ProblemSet,
    UnusableRow,
    has_path,
    prefixes,
)
from bapo_lightning.data.problems.file_rows import Records, read_text_files, read_unlike_files
from bapo_lightning.data.problems.formats import FORMATS, format_of, place_fault
from bapo_lightning.data.problems.held_out import Part, is_in, share_that_divides
from bapo_lightning.system.errors import DataError, first_line
from bapo_lightning.system.hub import stay_offline_without_hub
from bapo_lightning.system.values import Count, Share
from bapo_lightning.types import Problem


def problem_table(
    name: str,
    path: str,
    mapping: ColumnMapping,
    split: str = "train",
    config: str | None = None,
    revision: str | None = None,
    files: str | None = None,
    size: Count | None = None,
    any_size: bool = False,
    limit: Count | None = None,
    merge_repeats: bool = False,
    unusable: Literal["refuse", "leave_out"] = "refuse",
    licence: str | None = None,
    part: Part | None = None,
    validation_share: Share = 0.1,
) -> ProblemSet:
    """Reads one problem per row, in the order of the rows. `conf/problem_set/base.yaml` explains the options.

    Raises DataError: the data or a column is missing, its size is not the declared one, or a row cannot be
    used.
    """
    source = TableSource(path, split, config, revision, files)
    try:
        rows = source.rows({name for _, path in mapping.paths for name in prefixes(path)})
        num_rows = len(rows)
        if size is not None and not any_size and num_rows != size:
            raise DataError(
                f"{source} has {num_rows} rows, and {size} are declared: another version, or not all of it; "
                "write any_size=true for the set to take it as it is, or correct size"
            )
        rows = rows.select_columns(_columns(source, mapping, rows.column_names))  # no other is decoded
        rows = rows if limit is None else rows.select(range(min(limit, num_rows)))
        problems, left_out = _read(name, source, mapping, rows, merge_repeats, unusable == "leave_out")
        if part is not None:
            kept = [problem for problem in problems if is_in(part, problem.prompt, validation_share)]
            left_out["in the other part"] = len(problems) - len(kept)
            if not kept:
                share = share_that_divides([problem.prompt for problem in problems])
                fits = f"write data.train.validation_share={share}, or "
                remedy = f"{fits if share else ''}use more rows"
                raise DataError(
                    f"none of the {len(problems)} problems of {source} belongs to its part {part!r} with "
                    f"validation_share={validation_share}; {remedy}"
                )
            problems = kept
    except DataError as error:
        raise DataError(f"problem set {name}: {error}") from None
    return ProblemSet(problems, str(source), num_rows, left_out)


@dataclass(frozen=True, slots=True)
class TableSource:
    """Location of a table; see `problem_table`."""

    path: str
    split: str
    config: str | None
    revision: str | None
    files: str | None

    def rows(self, wanted: Collection[str]) -> datasets.Dataset | Records:
        """Loads the table, at least its `wanted` columns. Raises DataError, with the command that fetches it,
        if it is not available.
        """
        if fault := place_fault(self.path):
            raise DataError(f"path={self.path}{fault}")
        path = os.path.expanduser(self.path)
        file_format = None if Path(path).is_dir() else format_of(path)
        is_hub = file_format is None and not Path(path).is_dir()
        if Path(path).is_file():
            path = glob.escape(path)  # a name with brackets is not a pattern
        datasets.disable_progress_bars()
        verbosity = datasets.logging.get_verbosity()
        datasets.logging.set_verbosity(datasets.logging.CRITICAL)  # its errors are reported below
        try:
            if file_format is not None:
                return self._load(file_format, path, wanted)
            return self._hub(path, wanted) if is_hub else self._folder(path, wanted)
        except DataError:
            raise
        except Exception as error:  # each reader raises its own types
            raise DataError(self.fault() or self._remedy(error, is_hub)) from None
        finally:
            datasets.logging.set_verbosity(verbosity)

    def fault(self) -> str | None:
        """Returns a message that names a local file that is empty, so that no reader can read it; or None."""
        path = os.path.expanduser(self.path)
        for file in map(Path, [path] if Path(path).is_file() else sorted(glob.glob(path))):
            if file.is_file() and file.stat().st_size == 0:
                return f"{file} is empty"
        return None

    def __str__(self) -> str:
        """Returns "openai/gsm8k (main, split train)", or the path of files."""
        if format_of(self.path) is not None:
            return self.path
        return f"{self.path} ({f'{self.config}, ' if self.config else ''}split {self.split})"

    def _folder(self, path: str, wanted: Collection[str]) -> datasets.Dataset | Records:
        saved = Path(path, self.split) if Path(path, "dataset_dict.json").is_file() else Path(path)
        if (saved / "state.json").is_file():  # written by `Dataset.save_to_disk`
            return datasets.load_from_disk(str(saved))
        if not any(format_of(name) for _, _, names in os.walk(path) for name in names):
            raise ValueError(f"no file in it ends with {', '.join(FORMATS)}")
        return self._load(path, self.files, wanted)

    def _hub(self, path: str, wanted: Collection[str]) -> datasets.Dataset | Records:
        stay_offline_without_hub()
        try:
            return self._load(path, self.files, wanted, revision=self.revision)
        except ConnectionError:
            # Offline, datasets 5.2 finds only tables that it prepared itself, not files of `hf download`.
            try:
                fetched = huggingface_hub.snapshot_download(
                    path, repo_type="dataset", revision=self.revision, local_files_only=True
                )
            except (OSError, ValueError):
                raise ConnectionError("the hub cannot be reached, and it was not fetched before") from None
            return self._folder(fetched, wanted)

    def _load(
        self, path: str, files: str | None, wanted: Collection[str], **options: Any
    ) -> datasets.Dataset | Records:
        config = None if path in FORMATS.values() else self.config
        named = None if files is None else {self.split: files}
        builder = datasets.load_dataset_builder(path, config, data_files=named, **options)
        files_of_split = (builder.config.data_files or {}).get(self.split, [])
        custom = getattr(builder.config, "field", None) or getattr(builder.config, "sep", ",") not in ",\t"
        types = set() if custom else set(map(format_of, files_of_split))
        if types and types <= {"json", "csv"}:
            return read_text_files(self._fetched(files_of_split), wanted)
        is_parquet = types == {"parquet"} and not builder.info.features
        if is_parquet and (unlike := read_unlike_files(self._fetched(files_of_split), wanted)) is not None:
            return unlike
        return datasets.load_dataset(path, config, data_files=named, split=self.split, **options)

    @staticmethod
    def _fetched(names: Sequence[str]) -> list[tuple[str, str]]:
        """Returns the path on this machine and the name of each file."""
        return list(zip(datasets.DownloadManager().download(list(names)), names, strict=True))

    def _remedy(self, error: BaseException, is_hub: bool) -> str:
        while error.__cause__ is not None:  # the cause of "An error occurred" is the real error
            error = error.__cause__
        reason = first_line(error)
        failure = f"{self} could not be loaded ({reason})"
        if not is_hub:
            return f"{failure}; check the file and the split"
        options = f" --revision {self.revision}" if self.revision else ""
        options += f" --include '{self.files}'" if self.files else ""
        page = f"https://huggingface.co/datasets/{self.path}"
        terms = f"accept its terms at {page}, run `hf auth login`, then " if "gated" in str(error) else ""
        return (
            f"{failure}. With a network, {terms}fetch it: hf download --repo-type dataset "
            f"{self.path}{options}\n"
            f"It is then found, also offline, in {huggingface_hub.constants.HF_HUB_CACHE} (HF_HOME moves it; "
            "with HF_HUB_OFFLINE=1 no connection is tried). Or check its name and split, or write the path "
            "of a file or folder that holds it: path=FILE"
        )


def _columns(source: TableSource, mapping: ColumnMapping, present: list[str]) -> list[str]:
    needed = []
    for key, path in mapping.paths:
        column = next((prefix for prefix in prefixes(path) if prefix in present), None)
        if column is None:
            raise DataError(
                f"mapping.{key}={path}, and {source} has no such column; its columns are {', '.join(present)}"
            )
        needed.append(column)
    return sorted(set(needed))


def _read(
    name: str, source: TableSource, mapping: ColumnMapping, rows: Any, merge_repeats: bool, leave_out: bool
) -> tuple[list[Problem], Counter[str]]:
    """Returns the problems of all rows, and the number of rows left out by reason."""
    problems, left_out, seen = list[Problem](), Counter[str](), set[tuple[str, str]]()
    known = {path for _, path in mapping.paths if any(has_path(row, path) for row in _in_batches(rows))}
    for number, row in enumerate(_in_batches(rows)):
        try:
            problem = mapping.read(row, number, name, known)
        except MissingField as error:
            raise DataError(
                f"row {number} of {source} does not have one of the mapping's fields "
                f"({', '.join(path for _, path in mapping.paths)}); where the path ends there are "
                f"{', '.join(error.args) or 'no fields'}"
            ) from None
        except UnusableRow as reason:
            if not leave_out:
                raise DataError(
                    f"row {number} of {source} cannot be used: {reason}; correct the mapping or the row, or "
                    "write unusable=leave_out to skip such rows"
                ) from None
            left_out[str(reason)] += 1
            continue
        if merge_repeats:
            if (problem.prompt, problem.answer) in seen:
                left_out["repeated row"] += 1
                continue
            seen.add((problem.prompt, problem.answer))
        problems.append(problem)
    if not problems:
        reasons = "; ".join(f"{count} rows: {reason}" for reason, count in left_out.items())
        raise DataError(f"{source} gives no problem ({reasons or 'it has no rows'}); check its mapping")
    repeated = [key for key, count in Counter(problem.id for problem in problems).items() if count > 1]
    if repeated:
        raise DataError(
            f"{len(repeated)} ids of {source} belong to several rows, among them {repeated[0]}; write "
            "mapping.id=null to number the rows instead"
        )
    return problems, left_out


def _in_batches(rows: Any) -> Iterator[dict[str, Any]]:
    """Yields the rows one by one. `datasets` would take several times longer to decode single rows."""
    if isinstance(rows, Records):
        yield from rows
        return
    for batch in rows.iter(batch_size=1000):
        for values in zip(*batch.values(), strict=True):
            yield dict(zip(batch, values, strict=True))
