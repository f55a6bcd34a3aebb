import pytest
from tests.builders import random_model


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """The engines' model."""
    made = tmp_path_factory.mktemp("model")
    random_model().save_pretrained(made)
    return str(made)
