"""Rows of a data set: from the hub, a folder or files, all through `datasets`."""

from __future__ import annotations

import glob
import os
from dataclasses import dataclass
from pathlib import Path

import datasets
import huggingface_hub
from datasets.exceptions import DatasetsError

from bapo_lightning.errors import DataError

FORMATS = {".jsonl": "json", ".json": "json", ".parquet": "parquet", ".csv": "csv", ".tsv": "csv"}


@dataclass(frozen=True, slots=True)
class TableSource:
    """Location of a table."""

    path: str  # hub name, folder, or file of a format above; * stands for several files
    split: str = "train"  # split of the data set; any name for files
    config: str | None = None  # configuration of the data set, where it has several
    revision: str | None = None  # branch, tag or commit of the hub repository
    files: str | None = None  # only these files of the hub repository or folder, e.g. "data/math-*"

    def rows(self) -> datasets.Dataset:
        """Loads the table. Raises DataError with the command that fetches it when it cannot be had."""
        path = os.path.expanduser(self.path)
        file_format = FORMATS.get(Path(path).suffix)
        is_remote = "://" in path
        try:
            if file_format is not None:
                if not is_remote and not glob.glob(path):
                    raise DataError(f"path={self.path}: there is no such file")
                options = {"delimiter": "\t"} if path.endswith(".tsv") else {}
                return datasets.load_dataset(
                    file_format, data_files={self.split: path}, split=self.split, **options
                )
            if Path(path).is_dir():
                return self._folder(path)
            if not is_remote and (path.startswith((".", "/")) or path.count("/") > 1):
                raise DataError(f"path={self.path}: there is no such file or folder")
            return self._hub(path)
        except (DatasetsError, OSError, ValueError, TypeError) as error:
            if isinstance(error, DataError):
                raise
            raise DataError(
                self._remedy(error, is_hub=file_format is None and not Path(path).is_dir())
            ) from None

    def __str__(self) -> str:
        """Returns "openai/gsm8k (main, split train)", or the path of files."""
        if Path(self.path).suffix in FORMATS:
            return self.path
        return f"{self.path} ({f'{self.config}, ' if self.config else ''}split {self.split})"

    def _folder(self, path: str) -> datasets.Dataset:
        saved = Path(path, self.split) if Path(path, "dataset_dict.json").is_file() else Path(path)
        if (saved / "state.json").is_file():  # written by `Dataset.save_to_disk`
            return datasets.load_from_disk(str(saved))
        return datasets.load_dataset(path, self.config, data_files=self._data_files, split=self.split)

    def _hub(self, path: str) -> datasets.Dataset:
        try:
            return datasets.load_dataset(
                path, self.config, data_files=self._data_files, split=self.split, revision=self.revision
            )
        except ConnectionError:
            # Offline, datasets 5.2 finds only tables that it prepared itself, not those of `hf download`.
            try:
                fetched = huggingface_hub.snapshot_download(
                    path, repo_type="dataset", revision=self.revision, local_files_only=True
                )
            except (OSError, ValueError):
                raise ConnectionError("the hub cannot be reached, and it was not fetched before") from None
            return self._folder(fetched)

    @property
    def _data_files(self) -> dict[str, str] | None:
        return None if self.files is None else {self.split: self.files}

    def _remedy(self, error: Exception, is_hub: bool) -> str:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        failure = f"{self} could not be loaded ({reason})"
        if not is_hub:
            return f"{failure}; check the file and the split"
        options = f" --revision {self.revision}" if self.revision else ""
        options += f" --include '{self.files}'" if self.files else ""
        page = f"https://huggingface.co/datasets/{self.path}"
        terms = f"accept its terms at {page}, run `hf auth login`, then " if "gated" in str(error) else ""
        return (
            f"{failure}. Where there is a network, {terms}fetch it: hf download --repo-type dataset "
            f"{self.path}{options}\n"
            f"It is then found, also offline, in {huggingface_hub.constants.HF_HUB_CACHE} (HF_HOME moves it; "
            "with HF_HUB_OFFLINE=1 no connection is tried). Or check its name and split, or write the path "
            "of a file or folder that holds it: path=FILE"
        )
