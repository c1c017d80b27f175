"""A plugin for a run about another database than the usual one: tests that ask for none are left out."""

import pytest


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    asks = {"db", "transactional_db", "django_db_setup"}
    left_out = [item for item in items if item.get_closest_marker("django_db") is None and not asks & set(getattr(item, "fixturenames", ()))]
    config.hook.pytest_deselected(items=left_out)
    without = set(left_out)
    items[:] = [item for item in items if item not in without]
