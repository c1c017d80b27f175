"""Who stands inside a guarantee: the line, its order, and the levels above."""

from hypothesis import given
from hypothesis import strategies as st

from quotas.lineup import Promised, Weight, Worker, all_inside, share_classes

H100 = "H100"


def worker(attempt: int, gpus: int = 1, *, index: int = 0, path: str = "org/a", **fields: object) -> Worker:
    facts = {"surplus": False, "preemptible": "yes", "job_class": "batch", "priority": 50, "began": attempt, "job": f"j-{attempt}"}
    return Worker(key=(attempt, "worker", index, H100), path=path, gpu_milli=gpus * 1000, **(facts | fields))  # type: ignore[arg-type]


def promises(**gpus: int | None) -> dict[tuple[str, str], Promised]:
    return {(name.replace("_", "/"), H100): Promised(None if count is None else count * 1000) for name, count in gpus.items()}


def classes(workers: list[Worker], given: dict[tuple[str, str], Promised]) -> list[str]:
    found = share_classes(workers, given)
    return [found[one.key] for one in workers]


def test_the_earlier_work_stands_inside_and_the_later_borrows() -> None:
    assert classes([worker(2, 4), worker(1, 4)], promises(org=None, org_a=4)) == ["borrowed", "guaranteed"]


def test_a_gang_larger_than_what_is_left_borrows_whole() -> None:
    gang = [worker(1, 3, index=index) for index in range(2)]
    assert classes([*gang, worker(2, 1)], promises(org=None, org_a=5)) == ["borrowed", "borrowed", "borrowed"]


def test_surplus_stands_behind_the_minimum_and_for_itself() -> None:
    elastic = [worker(1, 2), worker(1, 2, index=1, surplus=True), worker(1, 2, index=2, surplus=True)]
    assert classes(elastic, promises(org=None, org_a=4)) == ["guaranteed", "guaranteed", "borrowed"]


def test_what_may_not_be_preempted_comes_first_then_the_class_then_the_number() -> None:
    line = [
        worker(1),
        worker(2, priority=90),
        worker(3, job_class="interactive"),
        worker(4, job_class="inference"),
        worker(5, job_class="inference", preemptible="when_borrowed"),
        worker(6, preemptible="no"),
    ]
    for promised in range(7):
        found = classes(line, promises(org=None, org_a=promised))
        assert [place for place, share_class in enumerate(found, 1) if share_class == "guaranteed"] == sorted([6, 5, 4, 3, 2, 1][:promised])


def test_inside_means_on_every_level() -> None:
    line = [worker(1, 4, path="org/a"), worker(2, 4, path="org/b")]
    assert classes(line, promises(org=4, org_a=4, org_b=4)) == ["guaranteed", "borrowed"]
    assert classes(line, promises(org=8, org_a=4, org_b=4)) == ["guaranteed", "guaranteed"]


def test_a_node_that_is_promised_nothing_borrows_all_and_an_unlimited_one_nothing() -> None:
    assert classes([worker(1)], {}) == ["borrowed"]
    assert classes([worker(1, 900)], promises(org=None, org_a=None)) == ["guaranteed"]


def test_a_window_carries_what_the_guarantee_does_not() -> None:
    given = {("org", H100): Promised(None), ("org/a", H100): Promised(2000, 3000)}
    assert classes([worker(1, 2), worker(2, 3), worker(3, 1)], given) == ["guaranteed", "reserved", "borrowed"]


WORKERS = st.lists(
    st.builds(
        worker,
        attempt=st.integers(1, 40),
        gpus=st.integers(1, 4),
        path=st.sampled_from(["org/a", "org/b/x", "org/b/y"]),
        preemptible=st.sampled_from(["no", "when_borrowed", "yes"]),
        job_class=st.sampled_from(["inference", "interactive", "batch"]),
    ),
    max_size=12,
    unique_by=lambda one: one.key[0],
)
GUARANTEES = st.fixed_dictionaries({name: st.none() | st.integers(0, 12) for name in ("org", "org_a", "org_b", "org_b_x", "org_b_y")})


@given(WORKERS, GUARANTEES)
def test_no_node_has_more_inside_than_it_is_promised(workers: list[Worker], guarantees: dict[str, int | None]) -> None:
    given = promises(**guarantees)
    found = share_classes(workers, given)

    for (path, _), promised in given.items():
        inside = sum(one.gpu_milli for one in workers if found[one.key] == "guaranteed" and (one.path + "/").startswith(path + "/"))
        assert promised.guaranteed_milli is None or inside <= promised.guaranteed_milli
    assert found == share_classes(workers[::-1], given), "the order in which workers are named does not matter"


@given(WORKERS, GUARANTEES, st.data())
def test_who_asks_about_some_is_told_what_all_are_told(workers: list[Worker], guarantees: dict[str, int | None], data: st.DataObject) -> None:
    given = promises(**guarantees)
    asked = data.draw(st.lists(st.sampled_from(workers), unique_by=lambda one: one.key)) if workers else []
    found = share_classes(workers, given)

    assert share_classes(workers, given, asked) == {one.key: found[one.key] for one in asked}
    others = [Weight(one.path, H100, one.gpu_milli) for one in workers if one not in asked]
    if all_inside(asked, others, given):
        assert all(found[one.key] == "guaranteed" for one in asked)
