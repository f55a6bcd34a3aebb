"""A path that exists is no name of the hub, which need not be asked."""

import pytest
import transformers.utils.hub

from bapo_lightning.configuration.plan import _architecture_of_files
from bapo_lightning.errors import DataError


@pytest.mark.parametrize("name", ["README.md", "folder"])
def test_a_path_that_exists_is_judged_without_the_hub(name, tmp_path, monkeypatch):
    monkeypatch.setattr(transformers.utils.hub, "cached_file", None)
    (tmp_path / "README.md").write_text("text")
    (tmp_path / "folder").mkdir()
    with pytest.raises(DataError, match=r"is no model folder: config\.json is missing"):
        _architecture_of_files(str(tmp_path / name))
