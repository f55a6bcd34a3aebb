"""A path that exists is no name of the hub, which need not be asked."""

import pytest
import transformers.utils.hub
from tests.configuration.compositions import composed

from bapo_lightning.configuration.plan import _architecture_of_files
from bapo_lightning.configuration.validate import validate
from bapo_lightning.modules.policy.folder import model_path
from bapo_lightning.system.errors import ConfigError, DataError


@pytest.mark.parametrize("name", ["README.md", "folder"])
def test_a_path_that_exists_is_judged_without_the_hub(name, tmp_path, monkeypatch):
    monkeypatch.setattr(transformers.utils.hub, "cached_file", None)
    (tmp_path / "README.md").write_text("text")
    (tmp_path / "folder").mkdir()
    with pytest.raises(DataError, match=r"is not a model folder: config\.json is missing"):
        _architecture_of_files(str(tmp_path / name))


@pytest.mark.parametrize("path", ["n" * 300, "owner/" + "\u00fc" * 130])
def test_a_path_that_no_file_can_have_is_refused_before_the_system_is_asked(path):
    plain = composed()
    plain["model"]["path"] = path
    with pytest.raises(ConfigError, match=r"model\.path=.* has a name of more than 255 bytes"):
        validate(plain)


@pytest.mark.parametrize("package", ["nowhere", "", "os", "..", "\udcff"])
def test_a_package_that_is_not_installed_is_named(package):
    with pytest.raises(DataError, match=r"no package .* is installed here; write a model folder"):
        model_path(f"package://{package}/model")
