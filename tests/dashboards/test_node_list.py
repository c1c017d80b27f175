"""The list of nodes: what their GPUs do now and which jobs run there, for whom may know it."""

import csv

import pytest
from django.urls import reverse

from dashboards.models import NO_READING, TelemetryFrame
from dashboards.node_list import NODES
from dashboards.readings import NOT_READ, Reading, reading_of_all
from gpufleet.core.times import now
from scheduler.models import Health, JobState, OutsideJob, OutsideSeat
from tests.builders import job, mig_gpu, node, placement
from tests.dashboards.worlds import gpus_of, readings

pytestmark = pytest.mark.django_db


def rows(personas, name="operator", **asked):
    page = personas.client(name).get(reverse("nodes"), asked)
    assert page.status_code == 200
    return {row.node.name: row for row in page.context["page"].rows}, page.content.decode()


def file_of(personas, name):
    text = b"".join(personas.client(name).get(reverse("nodes"), {"format": "csv"}).streaming_content).decode("utf-8-sig")
    return {row["Node"]: row for row in csv.DictReader(text.splitlines())}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([], NOT_READ),
        ([NOT_READ], NOT_READ),
        ([Reading(10, 20, 30), Reading(51, 40, 84), NOT_READ], Reading(30, 30, 84)),
        ([Reading(120, None, 30), Reading(None, 60, None)], Reading(100, 60, 30)),
    ],
)
def test_several_readings_as_one_are_means_and_the_hottest(given, expected):
    assert reading_of_all(given) == expected


def test_a_node_shows_the_mean_of_its_gpus_and_the_hottest(personas):
    busy, silent = node("busy", gpus=3), node("silent", gpus=1)
    one, two, unread = gpus_of(busy)
    readings({one: 90, two: 31, unread: None}, at=now())
    TelemetryFrame.objects.update(memory_used=bytes([80, 40, NO_READING]), temperature_c=bytes([61, 88, NO_READING]))

    found, html = rows(personas)

    assert found["busy"].reading == Reading(60, 60, 88)
    assert "<strong>88 °C</strong>" in html, "hot"
    assert found["silent"].reading == NOT_READ
    assert not silent.gpus.filter(pk=one.pk).exists()
    told = file_of(personas, "operator")["busy"]
    assert [told[name] for name in ("Utilization", "Memory used", "Temperature")] == ["60", "60", "88"]


@pytest.mark.parametrize("of", ["nodes", "gpus"])
def test_a_list_that_shows_readings_is_asked_for_again(personas, of):
    there, client = gpus_of(node("busy", gpus=1))[0], personas.client("operator")
    again = 'data-again="30000"'

    assert again not in client.get(reverse(of)).content.decode(), "nothing is read"
    readings({there: 90}, at=now())
    assert again in client.get(reverse(of)).content.decode()
    client.post(reverse("columns"), {"table": of, "column": ["name", "health"], "next": reverse(of)})
    assert again not in client.get(reverse(of)).content.decode(), "no reading is shown"


def test_a_node_names_its_largest_job_and_counts_the_others(personas):
    full = node("full", gpus=4)
    first, *others = gpus_of(full)
    small = job("small", state=JobState.RUNNING)
    large = job("large", state=JobState.RUNNING)
    placement(small, first)
    for gpu in others[:2]:
        placement(large, gpu)
    placement(job("hidden", state=JobState.RUNNING), others[2])

    found, html = rows(personas)

    assert [held.holder.job_name for held in found["full"].jobs] == ["large", "small", "hidden"]
    assert [(held.parts, held.milli) for held in found["full"].jobs] == [(2, 2000), (1, 1000), (1, 1000)]
    cell = html.partition('c-jobs"')[2].partition("</td>")[0]
    assert ">large<" in cell and ">small<" not in cell
    assert 'title="small, hidden">+2<' in cell


def test_jobs_of_other_teams_are_one_and_have_no_name(personas):
    shared = node("shared", gpus=4)
    first, *others = gpus_of(shared)
    placement(job("ours", state=JobState.RUNNING, on=personas.nodes["acme/research/nlp"]), first)
    for number, gpu in enumerate(others):
        placement(job(f"secret-{number}", state=JobState.RUNNING, on=personas.nodes["acme/research/vision"]), gpu)

    found, html = rows(personas, "viewer")

    assert [(held.holder.label, held.parts, held.milli) for held in found["shared"].jobs] == [("another team", 3, 3000), ("ours", 1, 1000)]
    assert "secret" not in html and "vision" not in html
    assert "secret" not in str(file_of(personas, "viewer")) and "another team" in file_of(personas, "viewer")["shared"]["Jobs"]


def test_parts_of_gpus_and_jobs_outside_gpufleet_count_too(personas):
    mixed = node("mixed", gpus=1)
    split = mig_gpu(mixed)
    placement(job("slice", state=JobState.RUNNING), split, mig=split.mig_instances.first(), gpu_milli=428)
    outside = OutsideJob.objects.create(cluster=mixed.cluster, number=77, person="mallory", since=now())
    OutsideSeat.objects.create(job=outside, node=mixed, gpu=gpus_of(mixed)[0])

    found, _ = rows(personas)
    assert [(held.holder.label, held.milli) for held in found["mixed"].jobs] == [("Slurm job 77 of mallory", 1000), ("slice", 428)]

    found, html = rows(personas, "viewer")
    assert [held.holder.label for held in found["mixed"].jobs] == ["a job outside gpufleet", "another team"]
    assert "mallory" not in html


def test_a_job_that_ended_is_gone_and_one_without_gpus_is_there(personas):
    host = node("host", gpus=1)
    gone = placement(job("gone", state=JobState.COMPLETED), gpus_of(host)[0])
    type(gone).objects.filter(pk=gone.pk).update(until=now())
    held = placement(job("loader", state=JobState.RUNNING), gpus_of(host)[0])
    type(held).objects.filter(pk=held.pk).update(gpu=None, gpu_milli=0)

    found, _ = rows(personas)

    assert [one.holder.job_name for one in found["host"].jobs] == ["loader"]


def test_what_is_seldom_looked_for_waits_in_the_column_chooser(personas):
    node("alone", gpus=1)
    page = personas.client("operator").get(reverse("nodes")).context["page"]

    assert [column.key for column in page.columns] == [
        *("name", "health", "sm", "memory_used", "celsius"),
        *("place", "type", "sick", "allocated", "jobs"),
    ]
    assert {"since", "cluster", "pool", "gpus", "heartbeat"} <= {column.key for column, shown in page.column_choices if not shown}


def test_the_example_of_the_filter_line_can_be_typed(personas):
    node("sick", gpus=1, health=Health.SUSPECT)
    node("well", gpus=1)

    found, _ = rows(personas, q=NODES.example)
    page = personas.client("operator").get(reverse("nodes"), {"q": NODES.example}).context["page"]

    assert set(found) == {"sick"}
    assert page.problems == []
