"""Search: the page, the answers of the palette, and what each person may find."""

import pytest

from dashboards.idle.models import IdleEpisode
from gpufleet.core.times import now
from quotas.models import Role
from quotas.permissions import access_for_user
from scheduler.models import Job, JobState, Node, Schedule
from tests.builders import attempt, cluster, gpu, job, node, person, placement, quota, role

pytestmark = pytest.mark.django_db


@pytest.fixture
def fleet():
    """Two teams with a running job each on two of three nodes."""
    acme = quota("acme")
    nlp, vision = quota("nlp", parent=acme, title="Language"), quota("vision", parent=acme)
    first, second = node("dgx-1", gpus=2), node("dgx-10", gpus=2)
    node("rack-dgx-1", gpus=1)
    placement(job("train-llama", on=nlp, state=JobState.RUNNING), gpu(first))
    placement(job("train-vit", on=vision, state=JobState.RUNNING), gpu(second))
    job("train-later", on=nlp)
    return {"acme": acme, "nlp": nlp, "vision": vision}


def reader(name: str, at) -> object:
    user = person(f"reader-{name}")
    role(user, name, at)
    return user


def found(client, user, query: str) -> dict[str, list[str]]:
    client.force_login(user)
    answer = client.get("/search/suggest", {"q": query}).json()
    return {group["label"]: [item["label"] for item in group["items"]] for group in answer["groups"]}


def test_what_is_called_so_comes_before_what_only_contains_it(client, fleet):
    answer = found(client, reader(Role.VIEWER, fleet["nlp"]), "dgx-1")

    assert answer["Nodes"] == ["dgx-1", "dgx-10", "rack-dgx-1"]


def test_jobs_are_found_only_where_one_may_see(client, fleet):
    assert found(client, reader(Role.VIEWER, fleet["nlp"]), "train")["Jobs"] == ["train-later", "train-llama"]
    assert set(found(client, reader(Role.OPERATOR, fleet["acme"]), "train")["Jobs"]) == {"train-later", "train-llama", "train-vit"}


def test_teams_are_found_by_title_and_only_where_one_may_see(client, fleet):
    viewer = reader(Role.VIEWER, fleet["nlp"])

    assert found(client, viewer, "langu")["Quotas"] == ["Language"]
    assert "Quotas" not in found(client, viewer, "vision")


def test_people_are_found_by_those_who_manage_people(client, fleet):
    person("grace", display_name="Grace Hopper")

    assert found(client, reader(Role.QUOTA_ADMIN, fleet["nlp"]), "hopper")["People"] == ["Grace Hopper"]
    assert "People" not in found(client, reader(Role.VIEWER, fleet["nlp"]), "hopper")


def test_schedules_are_found_by_name_and_id_and_only_where_one_may_see(client, fleet):
    for team in ("nlp", "vision"):
        Schedule.objects.create(public_id=f"s-{team}", name=f"nightly-{team}", quota=fleet[team], cron="30 2 * * *", next_due=now())
    viewer = reader(Role.VIEWER, fleet["nlp"])

    assert found(client, viewer, "nightly")["Schedules"] == ["nightly-nlp"]
    assert found(client, viewer, "S-NLP")["Schedules"] == ["nightly-nlp"]
    assert "Schedules" not in found(client, viewer, "s-vision")
    (item,) = client.get("/search/suggest", {"q": "s-nlp"}).json()["groups"][0]["items"]
    assert (item["url"], item["note"]) == ("/schedules/s-nlp/", "s-nlp · Active · 30 2 * * * UTC · acme/nlp")
    assert client.get(item["url"]).status_code == 200


def test_ids_and_driver_uuids_find_their_gpu(client, fleet):
    viewer = reader(Role.VIEWER, fleet["nlp"])
    device = gpu(node("dgx-77", gpus=1), uuid="GPU-84aefbad-39e1")

    assert found(client, viewer, device.public_id)["GPUs"] == ["dgx-77 GPU 0"]
    assert found(client, viewer, "84aefbad")["GPUs"] == ["dgx-77 GPU 0"]


def test_every_answer_leads_to_a_page_that_opens(client, fleet):
    cluster("north", title="North hall")
    user = person("root", is_superuser=True)
    client.force_login(user)

    for query in ("dgx", "train", "acme", "root", "north", "langu"):
        for group in client.get("/search/suggest", {"q": query}).json()["groups"]:
            for item in group["items"]:
                assert client.get(item["url"]).status_code == 200, item


def commands(client, user, query: str, at: str = "") -> list[str]:
    client.force_login(user)
    groups = {group["label"]: group["items"] for group in client.get("/search/suggest", {"q": query, "at": at}).json()["groups"]}
    items = groups.get("Commands", [])
    assert all(client.get(item["url"]).status_code == 200 for item in items), items
    return [item["label"] for item in items]


def test_a_verb_before_a_name_offers_the_page_that_does_it(client, fleet):
    operator = person("oona", is_superuser=True)

    assert commands(client, operator, "dra dgx-10") == ["Drain dgx-10"]
    assert commands(client, operator, "down dgx-10") == ["Mark down dgx-10"]
    assert commands(client, operator, "cancel train-vit") == ["Cancel train-vit"]
    assert commands(client, operator, "log train-v") == ["Log of train-vit"]
    assert commands(client, operator, "edit langu") == ["Edit Language"]
    assert commands(client, operator, "drain d") == commands(client, operator, "xy dgx-10") == []


def test_a_verb_alone_is_about_the_row_at_hand(client, fleet):
    operator, lead = person("oona", is_superuser=True), reader(Role.TEAM_LEAD, fleet["nlp"])
    dgx, llama = Node.objects.get(name="dgx-10"), Job.objects.get(name="train-llama")
    other = node(f"a-{dgx.public_id}", gpus=1)  # its name holds the id of the other one

    assert commands(client, operator, "dra", dgx.public_id) == ["Drain dgx-10"]
    assert commands(client, operator, "dra", other.public_id) == [f"Drain {other.name}"]
    assert commands(client, lead, "can", llama.public_id) == ["Cancel train-llama"]
    assert commands(client, operator, "mov", fleet["nlp"].public_id) == ["Move Language"]
    assert commands(client, operator, "dra dgx-10", other.public_id) == ["Drain dgx-10"], "a name goes before the row"
    assert commands(client, lead, "dra", dgx.public_id) == []


def test_a_verb_alone_finds_its_row_among_many_whose_names_hold_its_id(client, fleet):
    operator, llama, team = person("oona", is_superuser=True), Job.objects.get(name="train-llama"), fleet["nlp"]
    for number in range(7):
        job(f"again-{llama.public_id}-{number}", on=team)
        quota(f"a-{team.public_id}-{number}", parent=fleet["acme"])

    assert commands(client, operator, "can", llama.public_id) == ["Cancel train-llama"]
    assert commands(client, operator, "mov", team.public_id) == ["Move Language"]


def test_without_a_node_at_hand_draining_begins_in_the_list(client, fleet):
    operator = person("oona", is_superuser=True)

    assert commands(client, operator, "dra") == commands(client, operator, "drain", "j-999999") == ["Drain node…"]
    assert commands(client, operator, "mark") == commands(client, reader(Role.VIEWER, fleet["nlp"]), "dra") == []


def test_the_owner_of_idle_gpus_is_notified_by_a_verb(client, fleet):
    held = Job.objects.get(name="train-llama")
    facts = {"public_id": "e-1", "gpu_type": "H100-SXM-80GB", "waste": "empty", "held_milli": 1000, "idle_milli": 1000, "activity_centi": 0}
    times = {"started_at": now(), "stage_at": now(), "seen_at": now()}
    IdleEpisode.objects.create(job=held, attempt=held.attempts.first() or attempt(held), quota=held.quota, **facts, **times)

    assert commands(client, reader(Role.OPERATOR, fleet["acme"]), "notify train") == ["Notify owner of train-llama"]
    assert commands(client, reader(Role.TEAM_LEAD, fleet["nlp"]), "reclaim train") == ["Reclaim GPUs of train-llama"]
    assert commands(client, reader(Role.VIEWER, fleet["nlp"]), "notify train") == []


def test_nobody_is_offered_what_he_may_not_do(client, fleet):
    viewer = reader(Role.VIEWER, fleet["nlp"])

    assert commands(client, viewer, "drain dgx") == commands(client, viewer, "cancel train") == commands(client, viewer, "edit langu") == []
    assert commands(client, viewer, "log train-llama") == commands(client, viewer, "clone train-llama") == []
    assert commands(client, viewer, "fairness langu") == ["Fairness of Language"]
    assert commands(client, reader(Role.TEAM_LEAD, fleet["nlp"]), "cancel train") == ["Cancel train-later", "Cancel train-llama"]


def test_a_node_that_is_drained_already_is_not_offered(client, fleet):
    node("dgx-55", gpus=1, health="draining")

    assert commands(client, person("oona", is_superuser=True), "drain dgx-55") == []


def test_without_a_role_there_is_nothing_to_find(client, fleet):
    assert found(client, person("stranger"), "dgx") == {}


def test_nobody_searches_without_signing_in(client):
    assert client.get("/search/", {"q": "dgx"}).status_code == 302
    assert client.get("/search/suggest", {"q": "dgx"}, headers={"accept": "application/json"}).status_code == 401


@pytest.mark.parametrize("query", ["", " ", "x", "%", "_", "'; drop table node; --", "\\", "a" * 5000, "\N{PILE OF POO}", "%%"])
def test_odd_queries_find_nothing_and_break_nothing(client, fleet, query):
    user = reader(Role.VIEWER, fleet["nlp"])

    assert found(client, user, query) == {}
    assert client.get("/search/", {"q": query}).status_code == 200


def test_the_page_works_without_scripts_and_escapes_what_was_typed(client, fleet):
    client.force_login(reader(Role.VIEWER, fleet["nlp"]))

    html = client.get("/search/", {"q": "dgx"}).content.decode()
    odd = client.get("/search/", {"q": "<script>alert(1)</script>"}).content.decode()

    assert "/nodes/" in html
    assert "rack-dgx-1" in html
    assert "<script>alert" not in odd
    assert "Nothing found" in odd


def test_a_search_takes_few_queries_however_much_it_finds(fleet, django_assert_max_num_queries):
    from gpufleet.search import find

    for number in range(40):
        placement(job(f"train-{number}", on=fleet["nlp"], state=JobState.RUNNING), gpu(node(gpus=1)))
    access = access_for_user(reader(Role.OPERATOR, fleet["acme"]))

    with django_assert_max_num_queries(10):
        groups = find(access, "train", 25)

    assert groups[0].more
    assert len(groups[0].items) == 25


def test_the_api_finds_the_same_with_ids_and_without_commands(client, fleet):
    client.force_login(reader(Role.VIEWER, fleet["nlp"]))

    answer = client.get("/api/v1/search", {"q": "train"})

    assert answer.status_code == 200
    (kind,) = answer.json()["items"]
    assert (kind["kind"], kind["more"]) == ("jobs", False)
    assert sorted(one["name"] for one in kind["items"]) == ["train-later", "train-llama"], "not that of the other team"
    assert {one["id"] for one in kind["items"]} == {job.public_id for job in Job.objects.filter(quota=fleet["nlp"])}
    assert all(client.get(one["link"]).status_code == 200 for one in kind["items"])
    assert client.get("/api/v1/search", {"q": "nothing-like-it"}).json() == {"items": []}
    assert client.get("/api/v1/search").json() == {"items": []}
