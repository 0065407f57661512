import pytest
from support.fitted_model import write_model


@pytest.fixture(scope="session")
def model_file(tmp_path_factory):
    """A model to answer with."""
    return str(write_model(tmp_path_factory.mktemp("model") / "model.safetensors"))
