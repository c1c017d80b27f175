import pytest

from tests import builders


@pytest.fixture
def fleet(db: None) -> None:
    builders.node(gpus=4)
