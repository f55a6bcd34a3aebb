"""The model of the engines."""

import pytest
from tests.builders import random_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("model")
    random_model().save_pretrained(made)
    return str(made)
