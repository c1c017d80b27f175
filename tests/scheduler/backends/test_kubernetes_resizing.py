"""Runs on Kubernetes whose workers come, go and begin anew while the others stay."""

import signal
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from gpufleet.core.times import now
from scheduler.backends.base import BackendError, BackendRefused, BackendSilent, NotFound, RunState, SeenRun, Signal, StartOrder
from scheduler.backends.kubernetes.orders import Orders
from scheduler.models import KubernetesRun
from tests.scheduler.backends.kubernetes_site import Site, seat
from tests.scheduler.backends.scenes import start_order
from tests.servers import wait_until

pytestmark = [pytest.mark.django_db]

KEY = "j-1.1"
# It is ready once it has said so, and leaves with 0 when it is asked to.
STAYS = 'trap "exit 0" TERM; echo up with $WHAT of $WORLD_SIZE from $GPUFLEET_RESUME_FROM; touch ready; while :; do sleep 0.05; done'
STUBBORN = 'trap "" TERM; echo up with $WHAT; while :; do sleep 0.05; done'
READY = {"command": ["test", "-e", "ready"], "period_s": 1, "failures": 1}


def told(workers: int = 2, text: str = STAYS, *, what: str = "old", grace: int = 5, **launch: Any) -> StartOrder:
    """All workers of a run that states that it can be resized in place, each on a node of its own."""
    seats = tuple(seat(index, f"gpu{index + 1:03}") for index in range(workers))
    stated = {"shell": text, "env": {"WHAT": what}, "in_place": True} | launch
    return replace(start_order(KEY), job="j-1", attempt=1, grace_seconds=grace, workers=seats, launch=stated)


def up(k8s: Site, order: StartOrder) -> dict[int, str]:
    k8s.backend.start(order, now=now())
    k8s.until(RunState.RUNNING)
    for one in order.workers:
        wait_until(lambda: "up with" in k8s.log(one.index), seconds=20, what=f"worker {one.index} to be up")  # noqa: B023 - asked at once
    return uids(k8s)


def uids(k8s: Site) -> dict[int, str]:
    """The pods that run, by worker."""
    pods = [pod for pod in k8s.api.pods() if k8s.settings.tag in pod["metadata"]["name"] and pod.get("status", {}).get("phase") == "Running"]
    return {int(pod["metadata"]["labels"]["gpufleet/worker"]): pod["metadata"]["uid"] for pod in pods}


def resized(k8s: Site, order: StartOrder, sequence: int, *, add: Iterable[int] = (), leave: Iterable[int] = ()) -> bool:
    """Told as the loop tells it; whether it need not be told again."""
    joining = [one for one in order.workers if one.index in set(add)]
    going, order = [("worker", index) for index in leave], replace(order, sequence=sequence, resume_from="/saved")
    try:
        k8s.backend.resize(key=KEY, sequence=sequence, add=joining, leave=going, now=now(), order=order)
    except BackendError as fault:
        return _waits(fault)
    return True


def replaced(k8s: Site, sequence: int, *workers: int, by: StartOrder) -> bool:
    k8s.seen()  # as a tick does before it tells
    places = [("worker", index) for index in workers]
    try:
        k8s.backend.replace(key=KEY, sequence=sequence, workers=places, now=now(), order=replace(by, sequence=sequence))
    except BackendError as fault:
        return _waits(fault)
    return True


def _waits(fault: BackendError) -> bool:
    if isinstance(fault, BackendRefused | BackendSilent | NotFound):
        raise fault
    assert "has not ended yet" in str(fault)
    return False


def states(run: SeenRun) -> Sequence[RunState]:
    return [worker.state for worker in run.workers]


def until(k8s: Site, *wanted: RunState) -> SeenRun:
    def there() -> SeenRun | None:
        run = k8s.seen()
        return run if states(run) == list(wanted) else None

    return wait_until(there, seconds=30, what=f"workers to be {wanted}: {k8s.mine()}")


def kill(k8s: Site, index: int, number: int = signal.SIGKILL) -> None:
    k8s.api.nodes.processes[uids(k8s)[index]].send(number)


def test_workers_join_and_leave_a_run_whose_others_stay_however_often_it_is_told(k8s: Site) -> None:
    first = up(k8s, told())
    for _ in range(2):
        assert resized(k8s, told(3), 2, add=[2])
    until(k8s, *[RunState.RUNNING] * 3)
    grown = uids(k8s)
    wait_until(lambda: "of 3 from /saved" in k8s.log(2), seconds=20, what="it to say with how many it is")
    assert {index: grown[index] for index in first} == first

    resized(k8s, told(), 3, leave=[2])
    resized(k8s, told(3), 2, add=[2])  # late
    left = until(k8s, *[RunState.RUNNING] * 2)
    assert (uids(k8s), left.state, left.why) == (first, RunState.RUNNING, "")
    wait_until(lambda: resized(k8s, told(3), 4, add=[2]), seconds=20, what="another to join")
    until(k8s, *[RunState.RUNNING] * 3)
    wait_until(lambda: k8s.log(2).count("up with") == 2, seconds=20, what="its log to stand behind the earlier one's")
    assert (uids(k8s)[0], k8s.seen().sequence) == (first[0], 4)

    k8s.backend.stop(key=KEY, sequence=5, force=False, now=now())
    assert k8s.until(RunState.ENDED).exit_code == 0


def test_of_workers_that_were_there_before_the_newest_pods_stay_for_their_logs(k8s: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scheduler.backends.kubernetes.orders.KEPT_EARLIER", 1)
    up(k8s, told(1))
    for sequence in (2, 3, 4):
        wait_until(lambda: replaced(k8s, sequence, 0, by=told(1)), seconds=20, what="it to be begun anew")  # noqa: B023 - asked at once
        until(k8s, RunState.RUNNING)
    pods = [name.partition(" ")[0] for name in k8s.mine()]
    assert sorted(pods) == sorted([f"{k8s.pod()}-3", f"{k8s.pod()}-4"])

    k8s.backend.stop(key=KEY, sequence=5, force=True, now=now())
    k8s.until(RunState.ENDED)
    k8s.backend.forget(keys=[KEY], now=now())
    monkeypatch.setattr("scheduler.backends.kubernetes.orders.KEPT", 0)
    assert k8s.backend.tidy() == 1
    wait_until(lambda: not k8s.mine(), seconds=20, what="all of them to go with the run")


def test_a_run_of_one_worker_can_grow(k8s: Site) -> None:
    first = up(k8s, told(1))
    service = k8s.api.admin.get(f"/api/v1/namespaces/gpufleet/services/{k8s.pod().removesuffix('-worker-0')}")
    resized(k8s, told(2), 2, add=[1])
    until(k8s, RunState.RUNNING, RunState.RUNNING)

    assert uids(k8s)[0] == first[0]
    assert service["spec"]["clusterIP"] == "None", "the second finds the first by its name"


def test_a_console_that_dies_before_the_pods_are_made_misses_nobody_and_makes_each_once(k8s: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    first = up(k8s, told())

    def dies(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Orders, "_make", dies)
    with pytest.raises(KeyboardInterrupt):
        resized(k8s, told(3), 2, add=[2])
    monkeypatch.undo()
    k8s.restart()
    seen = k8s.seen()
    assert (seen.state, seen.why, states(seen)[2]) == (RunState.STARTING, "", RunState.STARTING)

    for _ in range(2):
        assert resized(k8s, told(3), 2, add=[2])
    until(k8s, *[RunState.RUNNING] * 3)
    assert len([pod for pod in k8s.mine() if "-worker-2-" in pod]) == 1
    assert {index: uids(k8s)[index] for index in first} == first


def test_a_lost_worker_is_missed_and_another_joins_until_one_is_killed_for_the_third_time(k8s: Site) -> None:
    first = up(k8s, told())
    k8s.api.admin.delete(f"/api/v1/namespaces/gpufleet/pods/{k8s.pod(1)}", grace=0)  # by no doing of its own, and that counts not
    for sequence in (2, 3, 4):
        lost = until(k8s, RunState.RUNNING, RunState.ENDED)
        assert (lost.state, lost.why, lost.node_lost) == (RunState.RUNNING, "", False)
        wait_until(lambda: resized(k8s, told(), sequence, add=[1]), seconds=20, what="another to join")  # noqa: B023 - asked at once
        until(k8s, RunState.RUNNING, RunState.RUNNING)
        kill(k8s, 1)
    assert uids(k8s).get(0) == first[0]
    ended = k8s.until(RunState.ENDED)
    assert (ended.exit_code, ended.why, ended.node_lost) == (137, "Worker 1 on gpu002: exit code 137.", False)


def test_one_that_fails_by_itself_ends_its_gang_and_those_who_cannot_go_on_without_a_lost_one_are_not_to_blame(k8s: Site) -> None:
    up(k8s, told(text="trap 'exit 3' USR1; echo up with it; while :; do sleep 0.05; done"))
    kill(k8s, 1)
    until(k8s, RunState.RUNNING, RunState.ENDED)
    wait_until(lambda: resized(k8s, told(), 2, add=[1]), seconds=20, what="another to join")
    until(k8s, RunState.RUNNING, RunState.RUNNING)
    kill(k8s, 0, signal.SIGUSR1)

    ended = k8s.until(RunState.ENDED)
    assert (ended.exit_code, ended.why, ended.node_lost) == (3, "Worker 0 on gpu001: exit code 3.", True)


def test_one_that_does_not_leave_is_killed_after_its_grace_and_the_others_are_not(k8s: Site) -> None:
    first = up(k8s, told(text=STUBBORN, grace=1))
    resized(k8s, told(1), 2, leave=[1])

    until(k8s, RunState.RUNNING)
    assert uids(k8s) == {0: first[0]}


def test_what_cannot_join_is_lost_and_the_others_serve_on(k8s: Site) -> None:
    """As where a node cannot pull the image of today."""
    first = up(k8s, told())
    resized(k8s, told(3, image="missing/one:1"), 2, add=[2])
    wait_until(lambda: states(k8s.seen())[2] == RunState.STARTING, seconds=20, what="its pod to be made")
    wait_until(lambda: states(k8s.seen(later=timedelta(minutes=10)))[2] == RunState.ENDED, seconds=20, what="it to be given up")
    seen = k8s.seen()
    assert (seen.state, seen.why) == (RunState.RUNNING, "")
    assert uids(k8s) == first


def test_one_is_begun_anew_in_its_place_with_what_is_to_be_known_now_and_the_other_goes_on(k8s: Site) -> None:
    first = up(k8s, told(ready=READY))
    anew, seen = told(what="new", ready=READY), []

    def again() -> bool:
        run = k8s.seen()
        seen.append(states(run)[1])
        assert (run.why, states(run)[0]) == ("", RunState.RUNNING)
        return replaced(k8s, 2, 1, by=anew)

    wait_until(again, seconds=20, what="worker 1 to be begun anew")
    assert replaced(k8s, 2, 1, by=anew), "told once more it changes nothing"
    wait_until(lambda: k8s.seen().workers[1].ready is True, seconds=20, what="the new one to be ready")
    run = k8s.seen()
    assert ([worker.began for worker in run.workers], run.sequence, run.state) == ([0, 2], 2, RunState.RUNNING)
    assert RunState.ENDED not in seen
    assert uids(k8s)[0] == first[0] and uids(k8s)[1] != first[1]
    wait_until(lambda: "up with new" in k8s.log(1), seconds=20, what="its log")
    assert "up with old" in k8s.log(1)
    replaced(k8s, 1, 0, by=anew)  # late
    assert uids(k8s)[0] == first[0]


@pytest.mark.parametrize("step", ["told to leave", "written down"])
def test_a_console_that_dies_while_one_is_replaced_goes_on_where_it_was(k8s: Site, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    first = up(k8s, told(ready=READY))
    assert not replaced(k8s, 2, 1, by=told(what="new", ready=READY))
    if step == "written down":

        def dies(*_: Any) -> None:
            raise KeyboardInterrupt

        wait_until(lambda: 1 not in uids(k8s), seconds=20, what="worker 1 to leave")
        monkeypatch.setattr(Orders, "_make", dies)
        with pytest.raises(KeyboardInterrupt):
            replaced(k8s, 2, 1, by=told(what="new", ready=READY))
        monkeypatch.undo()
    k8s.restart()
    assert k8s.seen().why == ""
    wait_until(lambda: replaced(k8s, 2, 1, by=told(what="new", ready=READY)), seconds=20, what="it to be begun by another")
    wait_until(lambda: k8s.seen().workers[1].ready is True, seconds=20, what="it to be ready")
    assert uids(k8s)[0] == first[0]
    assert len([pod for pod in k8s.mine() if "-worker-1" in pod]) == 2


def test_one_that_fails_before_it_could_serve_is_lost_and_the_others_serve_on(k8s: Site) -> None:
    first = up(k8s, told(ready=READY))
    bad = told(text="exit 7", ready=READY)
    wait_until(lambda: replaced(k8s, 2, 1, by=bad), seconds=20, what="worker 1 to be begun anew")
    for sequence in (3, 4):
        lost = until(k8s, RunState.RUNNING, RunState.ENDED)
        assert (lost.why, uids(k8s)) == ("", {0: first[0]})
        wait_until(lambda: resized(k8s, bad, sequence, add=[1]), seconds=20, what="it to try again")  # noqa: B023 - asked at once
    assert k8s.until(RunState.ENDED).why == "Worker 1 on gpu002: exit code 7."


def test_what_cannot_be_resized_or_replaced_is_refused_and_a_stop_ends_all_of_it(k8s: Site) -> None:
    with pytest.raises(NotFound):
        replaced_unknown(k8s)
    up(k8s, told(text=STUBBORN, in_place=False))
    with pytest.raises(BackendRefused, match="in place"):
        resized(k8s, told(3), 2, add=[2])
    with pytest.raises(BackendRefused, match="in place"):
        replaced(k8s, 2, 1, by=told())
    k8s.backend.stop(key=KEY, sequence=3, force=True, now=now())
    assert k8s.until(RunState.ENDED).exit_code == 137
    assert resized(k8s, told(3), 4, add=[2])
    assert uids(k8s) == {}


def replaced_unknown(k8s: Site) -> None:
    k8s.backend.replace(key=KEY, sequence=2, workers=[("worker", 0)], now=now(), order=told())


@pytest.fixture
def unmade(monkeypatch: pytest.MonkeyPatch) -> Callable[[Site, Callable[[], object]], None]:
    """A console that dies once it has written down who joins: their pods are not made."""

    def dies(*_: Any) -> None:
        raise KeyboardInterrupt

    def die_in(k8s: Site, act: Callable[[], object]) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(Orders, "_make", dies)
            with pytest.raises(KeyboardInterrupt):
                act()
        k8s.restart()

    return die_in


@pytest.mark.parametrize("force", [True, False])
def test_a_stop_ends_a_run_also_where_a_pod_that_was_to_join_was_never_made(k8s: Site, unmade: Any, force: bool) -> None:
    text = STUBBORN if force else STAYS
    up(k8s, told(text=text))
    unmade(k8s, lambda: resized(k8s, told(3, text=text), 2, add=[2]))
    k8s.backend.stop(key=KEY, sequence=3, force=force, now=now())

    assert k8s.until(RunState.ENDED).exit_code == (137 if force else 0)


def test_who_is_refused_by_kubernetes_is_lost_and_the_others_serve_on(k8s: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    first = up(k8s, told(ready=READY))
    make = Orders._make_one

    def refuses(site: Any, kind: str, body: Any) -> None:
        if kind == "pods":
            raise BackendRefused("admission webhook denied the request")
        make(site, kind, body)

    with monkeypatch.context() as patch:
        patch.setattr(Orders, "_make_one", refuses)
        with pytest.raises(BackendRefused):
            resized(k8s, told(3, ready=READY), 2, add=[2])
        assert states(k8s.seen()) == [RunState.RUNNING, RunState.RUNNING, RunState.ENDED]
        with pytest.raises(BackendRefused):
            wait_until(lambda: replaced(k8s, 3, 1, by=told(ready=READY)), seconds=20, what="it to be refused")
    run = k8s.seen()
    assert (states(run)[1], run.state, run.why, run.sequence) == (RunState.ENDED, RunState.RUNNING, "", 3)
    wait_until(lambda: resized(k8s, told(ready=READY), 4, add=[1]), seconds=20, what="another to join")
    until(k8s, RunState.RUNNING, RunState.RUNNING)
    assert uids(k8s)[0] == first[0]


def test_what_the_watch_has_not_told_of_yet_is_not_lost(k8s: Site) -> None:
    up(k8s, told())
    resized(k8s, told(3), 2, add=[2])
    until(k8s, *[RunState.RUNNING] * 3)
    rows = list(KubernetesRun.objects.filter(attempt_key=KEY))

    (seen,) = k8s.backend._look(rows, {KEY: {}}, now())

    assert (states(seen), seen.why) == ([RunState.RUNNING] * 3, "")


def test_whoever_begins_anew_or_joins_gets_the_secrets_of_now_and_none_is_left_behind(k8s: Site) -> None:
    kept = {"wandb": "value-of-then"}

    def secret(name: str, _team: str) -> str | None:
        return kept.get(name)

    def tokens() -> dict[int, str]:
        return {index: k8s.api.nodes.processes[uid].env["TOKEN"] for index, uid in uids(k8s).items()}

    def left() -> list[str]:
        found = k8s.api.admin.every("/api/v1/namespaces/gpufleet/secrets")[0]
        return sorted(one["metadata"]["name"] for one in found if k8s.settings.tag in one["metadata"]["name"])

    k8s.backend.secrets = secret
    up(k8s, told(secrets={"TOKEN": "wandb"}))
    kept["wandb"] = "value-of-now"
    wait_until(lambda: replaced(k8s, 2, 1, by=told(secrets={"TOKEN": "wandb"})), seconds=20, what="worker 1 to be begun anew")
    until(k8s, RunState.RUNNING, RunState.RUNNING)
    assert tokens() == {0: "value-of-then", 1: "value-of-now"}
    for sequence in (3, 4):
        wait_until(lambda: replaced(k8s, sequence, 1, by=told(secrets={"TOKEN": "wandb"})), seconds=20, what="it again")  # noqa: B023 - asked at once
        until(k8s, RunState.RUNNING, RunState.RUNNING)
    assert [name.removeprefix(k8s.pod().removesuffix("-worker-0")) for name in left()] == ["", "-4"]

    k8s.backend.stop(key=KEY, sequence=5, force=True, now=now())
    k8s.until(RunState.ENDED)
    k8s.backend.forget(keys=[KEY], now=now())
    assert left() == []


def test_a_node_that_dies_with_one_that_is_replaced_keeps_no_order_waiting(k8s: Site) -> None:
    first = up(k8s, told(text=STUBBORN, grace=30))
    down = {"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    assert not replaced(k8s, 2, 1, by=told())
    k8s.api.nodes.dead.add("gpu002")
    k8s.api.admin.patch("/api/v1/nodes/gpu002/status", {"status": {"conditions": [down]}})
    k8s.restart()
    try:
        wait_until(lambda: replaced(k8s, 2, 1, by=told()), seconds=20, what="the order to be carried out")
        elsewhere = replace(told(), workers=(told().workers[0], seat(1, "gpu003")))
        wait_until(lambda: resized(k8s, elsewhere, 3, add=[1]), seconds=20, what="another to join on another node")
        run = until(k8s, RunState.RUNNING, RunState.RUNNING)
        assert (run.sequence, run.workers[1].seat.node, uids(k8s)[0]) == (3, "gpu003", first[0])
    finally:
        k8s.api.nodes.dead.clear()
        k8s.api.admin.patch("/api/v1/nodes/gpu002/status", {"status": {"conditions": [down | {"status": "True"}]}})


def test_a_pod_that_was_given_up_and_not_ended_is_ended_by_the_next_look(k8s: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    up(k8s, told())
    resized(k8s, told(3, image="missing/one:1"), 2, add=[2])
    wait_until(lambda: states(k8s.seen())[2] == RunState.STARTING, seconds=20, what="its pod to be made")
    with monkeypatch.context() as patch:
        patch.setattr(Orders, "_kill", lambda *_: None)
        wait_until(lambda: states(k8s.seen(later=timedelta(minutes=10)))[2] == RunState.ENDED, seconds=20, what="it to be given up")
    wait_until(lambda: k8s.seen() and len(k8s.mine()) == 2, seconds=20, what="its pod to be gone")


def test_what_someone_wrote_who_has_left_or_failed_is_still_read(k8s: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    up(k8s, told(text=STAYS.replace("exit 0", "echo leaves; exit 0"), ready=READY))
    first = told(3, text="echo last words; exit 7", ready=READY)
    wait_until(lambda: replaced(k8s, 2, 1, by=first), seconds=20, what="worker 1 to be begun anew")
    until(k8s, RunState.RUNNING, RunState.ENDED)
    wait_until(lambda: resized(k8s, told(ready=READY), 3, add=[1]), seconds=20, what="another to join")
    until(k8s, RunState.RUNNING, RunState.RUNNING)
    resized(k8s, told(1), 4, leave=[1])
    until(k8s, RunState.RUNNING)

    said = k8s.log(1)
    assert [word for word in ("leaves", "last words", "up with") if word in said] == ["leaves", "last words", "up with"]
    asked: list[str] = []
    text = k8s.backend.client.text

    def noted(path: str, query: Any) -> bytes:
        asked.append(path)
        return text(path, query)

    monkeypatch.setattr(k8s.backend.client, "text", noted)
    assert k8s.log(1) == said
    assert len(asked) == 1, "of who stood there before, all is in the copy"


def test_nobody_can_be_told_to_save_and_the_order_is_carried_out_all_the_same(k8s: Site) -> None:
    up(k8s, told())
    k8s.backend.signal(key=KEY, sequence=2, signal=Signal.CHECKPOINT, now=now())

    assert k8s.seen().sequence == 2, "else what is missed later would be taken for older"
