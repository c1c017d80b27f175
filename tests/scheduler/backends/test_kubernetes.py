"""The Kubernetes back-end against a double of the API server and against the real one, with nodes that run the programs of pods."""

from dataclasses import replace
from datetime import timedelta

import pytest

from gpufleet.core.times import now
from scheduler.backends.base import BackendRefused, NotFound, RunState, Signal
from scheduler.backends.kubernetes import orders
from scheduler.models import KubernetesRun
from tests.scheduler.backends.kubernetes_site import seat, shell
from tests.scheduler.backends.scenes import start_order
from tests.servers import wait_until

pytestmark = [pytest.mark.django_db]


def test_a_process_runs_on_its_node_and_ends_with_its_code(k8s):
    k8s.start(on=[seat(0, "gpu003", 4)], launch=shell('echo "$RANK/$WORLD_SIZE $GPUFLEET_JOB $GPUFLEET_TOKEN"; exit 3'), token="let-me-in")

    run = k8s.until(RunState.ENDED)

    assert (run.exit_code, run.node_lost, run.why) == (3, False, "Worker 0 on gpu003: exit code 3.")
    assert run.started_at is not None and run.started_at <= run.ended_at
    assert k8s.log() == "0/1 j-1 let-me-in\n"
    pod = next(pod for pod in k8s.api.pods() if pod["metadata"]["name"] == k8s.pod())
    assert pod["spec"]["nodeName"] == "gpu003"
    assert pod["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "4"


def test_a_gang_over_two_nodes_has_the_ranks_of_torchrun(k8s):
    text = 'echo "rank $RANK local $LOCAL_RANK of $WORLD_SIZE at $MASTER_ADDR:$MASTER_PORT"'
    k8s.start(on=[seat(0, "gpu001", 2), seat(1, "gpu004", 2)], launch=shell(text, per="gpu"))

    run = k8s.until(RunState.ENDED)

    assert run.exit_code == 0, run.why
    master = f"worker-0.gf-{k8s.settings.tag}-j-1-1:29500"
    assert sorted(k8s.log(0).splitlines()) == [f"{rank}: rank {rank} local {rank} of 4 at {master}" for rank in (0, 1)]
    assert sorted(k8s.log(1).splitlines()) == [f"{rank - 2}: rank {rank} local {rank - 2} of 4 at {master}" for rank in (2, 3)]


def test_a_rank_that_fails_ends_the_others_of_its_worker(k8s):
    k8s.start(on=[seat(0, "gpu001", 2)], launch=shell("if [ $RANK = 1 ]; then exit 7; fi; exec sleep 300", per="gpu"))

    assert k8s.until(RunState.ENDED).exit_code == 7


def test_dollars_of_a_job_are_its_own(k8s):
    k8s.start(on=[seat(0, "gpu001")], launch={"command": ["printf", "%s", "$$ $(HOME) $HOME\n"], "env": {"A": "$(B)$$"}})
    k8s.until(RunState.ENDED)
    k8s.start("j-2.1", on=[seat(0, "gpu001")], launch=shell('echo "$A"', env={"A": "$(B)$$"}))
    k8s.until(RunState.ENDED, "j-2.1")

    assert (k8s.log(), k8s.log(key="j-2.1")) == ("$$ $(HOME) $HOME\n", "$(B)$$\n")


def test_a_worker_that_fails_ends_its_gang(k8s):
    k8s.start(on=[seat(0, "gpu001"), seat(1, "gpu002")], launch=shell("if [ $RANK = 1 ]; then exit 9; fi; exec sleep 300"))

    run = k8s.until(RunState.ENDED)

    assert (run.exit_code, run.why) == (9, "Worker 1 on gpu002: exit code 9.")


def test_one_that_is_asked_to_leave_saves_then_leaves_and_keeps_its_log(k8s):
    text = "trap 'echo saving' USR1; trap 'echo leaving; exit 0' TERM; echo up; while :; do sleep 0.1; done"
    k8s.start(on=[seat(0, "gpu001")], launch=shell(text), spec={"roles": [], "checkpoint": {"interval_s": 60}}, grace_seconds=2)
    k8s.until(RunState.RUNNING)
    wait_until(lambda: "up" in k8s.log(), what="it to be up")

    k8s.backend.signal(key="j-1.1", sequence=2, signal=Signal.TERMINATE, now=now())
    run = k8s.until(RunState.ENDED)

    assert k8s.log() == "up\nsaving\nleaving\n"
    assert run.exit_code == 0
    assert not run.node_lost


def test_one_that_does_not_leave_is_killed(k8s):
    k8s.start(on=[seat(0, "gpu001")], launch=shell("trap '' TERM; while :; do sleep 0.1; done"), grace_seconds=300)
    k8s.until(RunState.RUNNING)

    k8s.backend.stop(key="j-1.1", sequence=2, force=False, now=now())
    assert k8s.until(RunState.STOPPING).workers[0].state == RunState.RUNNING
    k8s.backend.stop(key="j-1.1", sequence=3, force=True, now=now())
    run = k8s.until(RunState.ENDED)

    assert run.exit_code in (137, None)


def test_it_is_told_twice_and_begins_once(k8s):
    for _ in range(2):
        k8s.start(on=[seat(0, "gpu001"), seat(1, "gpu002")], launch=shell("exec sleep 300"))
    k8s.restart()
    k8s.start(on=[seat(0, "gpu001"), seat(1, "gpu002")], launch=shell("exec sleep 300"))
    k8s.until(RunState.RUNNING)

    assert len(k8s.mine()) == 2


def test_an_older_order_changes_nothing(k8s):
    k8s.start(on=[seat(0, "gpu001")], launch=shell("exec sleep 300"), sequence=5)
    k8s.until(RunState.RUNNING)

    k8s.backend.stop(key="j-1.1", sequence=4, force=True, now=now())

    assert k8s.seen().state == RunState.RUNNING


def test_a_stop_that_comes_before_its_start_is_remembered(k8s):
    k8s.backend.stop(key="j-1.1", sequence=7, force=True, now=now())
    k8s.start(on=[seat(0, "gpu001")], launch=shell("exec sleep 300"), sequence=1)

    assert k8s.seen().state == RunState.ENDED
    assert k8s.mine() == []


@pytest.mark.parametrize("fails_at", [1, 2, 3, 4, 5, 6])
def test_a_gang_whose_start_is_cut_off_anywhere_begins_whole_or_not_at_all(k8s, monkeypatch, fails_at):
    """As if the console were killed before its nth call."""
    calls = []
    sent = type(k8s.api.client)._sent

    def until_then(client, method, path, *rest, **more):
        if method in ("POST", "PATCH"):
            calls.append(path)
            if len(calls) >= fails_at:
                raise RuntimeError("killed")
        return sent(client, method, path, *rest, **more)

    monkeypatch.setattr(type(k8s.api.client), "_sent", until_then)
    with pytest.raises(RuntimeError):
        k8s.start(on=[seat(0, "gpu001"), seat(1, "gpu002")], launch=shell("exec sleep 300"))
    monkeypatch.setattr(type(k8s.api.client), "_sent", sent)

    if fails_at < 6:  # the last opens the second gate
        assert [pod for pod in k8s.api.pods() if pod["spec"].get("nodeName") and k8s.settings.tag in pod["metadata"]["name"]] == []
    k8s.restart()
    assert k8s.seen().state == RunState.STARTING
    k8s.start(on=[seat(0, "gpu001"), seat(1, "gpu002")], launch=shell("exec sleep 300"))
    assert len(k8s.until(RunState.RUNNING).workers) == 2


def test_pods_of_others_are_left_alone(k8s):
    spec = {"restartPolicy": "Never", "containers": [{"name": "worker", "image": "any", "command": ["sleep", "300"]}]}
    other = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "theirs", "labels": {"gpufleet/console": "another"}}, "spec": spec}
    k8s.api.admin.create("/api/v1/namespaces/gpufleet/pods", other)
    k8s.start(on=[seat(0, "gpu001")], launch=shell("exec sleep 300"))
    k8s.until(RunState.RUNNING)

    k8s.backend.stop(key="j-1.1", sequence=2, force=True, now=now())
    k8s.until(RunState.ENDED)
    k8s.backend.tidy()

    assert "theirs" in [pod["metadata"]["name"] for pod in k8s.api.pods()]
    assert [run.key for run in k8s.backend.observe(now=now())] == ["j-1.1"]


def test_a_pod_with_this_consoles_label_and_no_name_of_a_run_is_passed_over(k8s):
    """Anybody who may create pods in the namespace can label them so."""
    spec = {"restartPolicy": "Never", "containers": [{"name": "worker", "image": "any", "command": ["sleep", "300"]}]}
    for number, key in enumerate(("x" * 63, "", "..", "a_b-c")):
        labels = {"gpufleet/console": k8s.settings.tag, "gpufleet/run": key} if key != ".." else {"gpufleet/console": k8s.settings.tag}
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"theirs-{number}", "labels": labels}, "spec": spec}
        k8s.api.admin.create("/api/v1/namespaces/gpufleet/pods", body)

    assert [run.key for run in k8s.backend.observe(now=now())] == ["a_b-c"]


def test_a_pod_of_this_console_that_nobody_knows_is_told_and_can_be_ended(k8s):
    k8s.start(on=[seat(0, "gpu001")], launch=shell("exec sleep 300"))
    k8s.until(RunState.RUNNING)
    KubernetesRun.objects.all().delete()
    k8s.restart()

    assert [(run.key, run.state) for run in k8s.backend.observe(now=now())] == [("j-1.1", RunState.RUNNING)]
    k8s.backend.stop(key="j-1.1", sequence=1 << 30, force=True, now=now())

    wait_until(lambda: k8s.mine() == [], what="its pod to be gone")


def test_a_pod_that_somebody_deletes_is_lost_and_its_gang_ends(k8s):
    k8s.start(on=[seat(0, "gpu001"), seat(1, "gpu002")], launch=shell("exec sleep 300"))
    k8s.until(RunState.RUNNING)

    k8s.api.admin.delete(f"/api/v1/namespaces/gpufleet/pods/{k8s.pod(1)}", grace=1)
    run = k8s.until(RunState.ENDED)

    assert run.node_lost
    assert run.why == f"The pod {k8s.pod(1)} was deleted in Kubernetes."


def test_a_node_without_room_is_not_waited_for(k8s):
    spec = {"nodeName": "gpu001", "restartPolicy": "Never", "containers": [{"name": "worker", "image": "any", "command": ["sleep", "300"]}]}
    spec["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": "6"}}
    k8s.api.admin.create("/api/v1/namespaces/gpufleet/pods", {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "theirs"}, "spec": spec})
    k8s.start(on=[seat(0, "gpu001", 4), seat(1, "gpu002", 4)], launch=shell("exec sleep 300"))
    wait_until(lambda: k8s.seen().workers[1].state == RunState.RUNNING, what="the other to be up")

    wait_until(lambda: k8s.seen(later=timedelta(seconds=31)).state == RunState.STOPPING, what="it to be given up")
    run = k8s.until(RunState.ENDED)

    assert run.node_lost
    assert "found no room for Worker 0 on gpu001" in run.why
    assert "nvidia.com/gpu" in run.why


def test_an_image_that_cannot_be_pulled_fails_the_job(k8s):
    k8s.start(on=[seat(0, "gpu001")], launch=shell("true", image="missing/image:1"))
    wait_until(lambda: k8s.seen() and [pod.waiting for pod in k8s.backend.pods.of("j-1.1").values()] == ["ImagePullBackOff"], what="the pull to fail")

    k8s.seen(later=timedelta(seconds=181))
    run = k8s.until(RunState.ENDED)

    assert (run.exit_code, run.node_lost) == (None, False)
    assert "The image of Worker 0 cannot be pulled on gpu001 (ImagePullBackOff)" in run.why


def test_a_start_that_is_given_up_says_what_it_waited_for(k8s):
    k8s.start(on=[seat(0, "gpu001")], launch=shell("true", image="missing/image:1"))
    wait_until(lambda: k8s.seen() and [pod.waiting for pod in k8s.backend.pods.of("j-1.1").values()] == ["ImagePullBackOff"], what="the pull to fail")

    k8s.seen()
    k8s.backend.stop(key="j-1.1", sequence=2, force=True, now=now())
    run = k8s.until(RunState.ENDED)

    assert run.waited_for == "Kubernetes did not start Worker 0 on gpu001: ImagePullBackOff: Back-off pulling image missing/image:1"


def test_a_program_that_is_not_in_the_image_fails_the_job(k8s):
    k8s.start(on=[seat(0, "gpu001")], launch={"command": ["/no/such/program"]})

    run = k8s.until(RunState.ENDED)

    assert (run.exit_code, run.node_lost, run.started_at) == (128, False, None)
    assert "could not be started on gpu001" in run.why


def test_a_kubelet_that_refuses_a_pod_makes_its_node_suspect(k8s):
    k8s.api.nodes.refusing["gpu002"] = "UnexpectedAdmissionError"
    k8s.start(on=[seat(0, "gpu002", 2)], launch=shell("true"))

    run = k8s.until(RunState.ENDED)

    assert run.node_lost
    assert [(one.node, one.code) for one in run.refusals] == [("gpu002", "devices")]


def test_what_kubernetes_never_takes_is_refused(k8s):
    with pytest.raises(BackendRefused, match="no shares of GPUs"):
        half = seat(0, "gpu001")
        k8s.start(on=[type(half)("worker", 0, "gpu001", (0,), gpu_milli=500)], launch=shell("true"))
    with pytest.raises(BackendRefused, match="422"):
        k8s.start("j-2.1", on=[seat(0, "gpu001")], launch=shell("true", image=" registry/any:1"))
    assert k8s.mine() == []


def test_a_run_is_forgotten_with_its_secret_and_its_log_stays_until_it_is_tidied(k8s, monkeypatch):
    k8s.start(on=[seat(0, "gpu001"), seat(1, "gpu002")], launch=shell("echo hello"))
    k8s.until(RunState.ENDED)

    k8s.backend.forget(keys=["j-1.1"], now=now())

    assert k8s.backend.observe(now=now()) == ()
    for kind in ("secrets", "services"):
        there = k8s.api.admin.every(f"/api/v1/namespaces/gpufleet/{kind}")[0]
        assert [one["metadata"]["name"] for one in there if k8s.settings.tag in one["metadata"]["name"]] == []
    assert k8s.log() == "hello\n"
    assert k8s.backend.tidy() == 0
    monkeypatch.setattr(orders, "KEPT", 0)
    assert k8s.backend.tidy() == 1
    assert k8s.mine() == []
    with pytest.raises(NotFound):
        k8s.log()


def test_a_log_is_read_in_parts_and_from_its_end(k8s):
    k8s.start(on=[seat(0, "gpu001")], launch=shell("for n in 1 2 3 4 5; do echo line $n; sleep 0.2; done; exec sleep 300"))
    k8s.until(RunState.RUNNING)
    whole = "".join(f"line {n}\n" for n in range(1, 6))
    wait_until(lambda: k8s.log() == whole, what="its lines")

    read = k8s.backend.logs
    first = read(key="j-1.1", role="worker", index=0, offset=0, limit=10)
    rest = read(key="j-1.1", role="worker", index=0, offset=first.next_offset, limit=1000)

    assert first.text + rest.text == whole
    assert read(key="j-1.1", role="worker", index=0, offset=-7, limit=1000).text == "line 5\n"
    assert not rest.ended


def test_secrets_reach_the_job_and_no_log_that_is_shown(k8s):
    k8s.backend.secrets = lambda name, team: {"hub": "very-secret"}.get(name)
    k8s.start(on=[seat(0, "gpu001")], launch=shell('[ "${#TOKEN}" = 11 ] && echo "it is $TOKEN"', secrets={"TOKEN": "hub"}), team="lab")

    assert k8s.until(RunState.ENDED).exit_code == 0
    assert k8s.log() == "it is [secret]\n"
    assert "very-secret" not in str(k8s.api.pods())
    with pytest.raises(BackendRefused, match="no secret 'other'"):
        k8s.start("j-2.1", on=[seat(0, "gpu001")], launch=shell("true", secrets={"TOKEN": "other"}))


def test_a_worker_is_asked_whether_it_can_serve(k8s):
    probe = {"command": ["test", "-e", "ready"], "period_s": 1, "timeout_s": 1, "failures": 1}
    k8s.start(on=[seat(0, "gpu001")], launch=shell("sleep 1; touch ready; exec sleep 300", ready=probe))
    k8s.until(RunState.RUNNING)

    assert k8s.seen().workers[0].ready is False
    wait_until(lambda: k8s.seen().workers[0].ready, what="it to be ready")
    assert k8s.seen().workers[0].ready_since is not None


def test_a_node_that_stops_answering_loses_its_workers(k8s):
    k8s.start(on=[seat(0, "gpu001"), seat(1, "gpu002")], launch=shell("exec sleep 300"))
    k8s.until(RunState.RUNNING)
    k8s.api.nodes.dead.add("gpu002")
    down = {"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    k8s.api.admin.patch("/api/v1/nodes/gpu002/status", {"status": {"conditions": [down]}})
    try:
        k8s.api.admin.delete(f"/api/v1/namespaces/gpufleet/pods/{k8s.pod(1)}")  # what Kubernetes does then

        k8s.seen(later=timedelta(seconds=90))
        run = k8s.until(RunState.ENDED)
    finally:
        up = {"type": "Ready", "status": "True", "reason": "KubeletReady", "lastTransitionTime": "2026-01-01T00:00:00Z"}
        k8s.api.admin.patch("/api/v1/nodes/gpu002/status", {"status": {"conditions": [up]}})

    assert run.node_lost
    assert run.why == "gpu002 does not answer Kubernetes; Worker 1 was there."


def test_people_reach_the_first_worker(k8s):
    k8s.start(on=[seat(0, "gpu001")], launch=shell("exec sleep 300"))

    reach = k8s.backend.reach(key="j-1.1")

    assert (reach.host, reach.shell) == ("gpu001", f"kubectl exec -it --namespace=gpufleet {k8s.pod()} -- /bin/sh")


def test_starts_that_are_announced_together_are_made_together_and_one_that_is_wrong_fails_alone(k8s):
    def order(key, *seats, **more):
        return replace(start_order(key), workers=seats, grace_seconds=5, **{"launch": shell("exec sleep 300"), **more})

    orders = [
        order("j-1.1", seat(0, "gpu001"), seat(1, "gpu002")),
        order("j-2.1", seat(0, "gpu003")),
        order("j-3.1", seat(0, "gpu003"), launch=shell("true", image=" wrong")),
        order("j-4.1", seat(0, "gpu003"), launch={}),
    ]
    refused = {}
    with k8s.backend.together([one.key for one in orders]):
        k8s.backend.announce(orders, now=now())
        before = len(k8s.mine())
        for one in orders:
            try:
                k8s.backend.start(one, now=now())
            except BackendRefused as fault:
                refused[one.key] = str(fault)

    assert before == len(k8s.mine()) == 3
    assert sorted(refused) == ["j-3.1", "j-4.1"]
    assert len(k8s.until(RunState.RUNNING).workers) == 2
    wait_until(lambda: k8s.seen("j-2.1").state == RunState.RUNNING, what="the other to run")
