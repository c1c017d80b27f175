"""The pages of the tree, of people, tokens and the audit, as people use them."""

import pytest
from django.test import Client
from django.urls import reverse

from gpufleet.core.models import AuditEntry, User
from gpufleet.core.times import now
from quotas.models import QuotaChange, QuotaNode, QuotaShare, Role, RoleBinding, ServiceToken
from tests import builders
from tests.personas import Personas


@pytest.fixture
def h100(personas: Personas) -> None:
    """Hardware of one type, and promises that fit: acme 16, research 8, nlp 4."""
    builders.gpu_type("H100")
    for path, milli in {"acme": 16_000, "acme/research": 8_000, "acme/research/nlp": 4_000}.items():
        QuotaShare.objects.create(node=personas.nodes[path], gpu_type="H100", guaranteed_milli=milli)


def _page(client: Client, name: str, *arguments: object) -> str:
    answer = client.get(reverse(name, args=arguments))
    assert answer.status_code == 200
    return answer.content.decode()


def test_the_tree_shows_only_the_own_subtree(personas: Personas, h100: None):
    text = _page(personas.client("quota_admin"), "quotas")

    assert "acme/research/vision" in text
    assert "acme/product" not in text


def test_the_tree_counts_what_runs_below(personas: Personas, h100: None):
    job = builders.job(quota=personas.nodes["acme/research/nlp"])
    builders.placement(job, builders.gpu())

    text = " ".join(_page(personas.client("superuser"), "quotas").split())

    assert text.count("<b>1</b> of") == 3


def test_the_tree_is_filtered_by_tokens_and_what_runs_below_still_counts(personas: Personas, h100: None):
    builders.placement(builders.job(quota=personas.nodes["acme/research/nlp"]), builders.gpu())
    old = builders.quota("old", parent=personas.nodes["acme"])
    QuotaNode.objects.filter(pk=old.pk).update(archived_at=now())
    QuotaShare.objects.create(node=old, gpu_type="OLD-40", guaranteed_milli=1_000)
    client = personas.client("superuser")

    present = client.get(reverse("quotas"), {"q": "kind:department research"})
    past = client.get(reverse("quotas"), {"q": "archived:yes"})
    found, gone = present.content.decode(), past.content.decode()

    assert " ".join(found.split()).count("<b>1</b> of") == 1
    assert ("acme/old" in found, "acme/research<" in found, "acme/old" in gone, "acme/research<" in gone) == (False, True, True, False)
    assert ["OLD-40" in page.context["gpu_types"] for page in (present, past)] == [False, True], "a type that only an archived node states"


def test_the_tree_as_a_file_is_recorded(personas: Personas, h100: None):
    answer = personas.client("finance").get(reverse("quotas"), {"format": "csv"})

    assert b"acme/research/nlp" in b"".join(answer.streaming_content)
    assert AuditEntry.objects.get(action="export").object_id == "/quotas/"


def test_a_list_costs_the_same_for_one_node_and_for_many(personas: Personas, h100: None, django_assert_max_num_queries):
    for number in range(40):
        builders.quota(f"team-{number}", parent=personas.nodes["acme/product"])

    client = personas.client("superuser")

    with django_assert_max_num_queries(10):
        _page(client, "quotas")


def test_a_fault_stands_at_its_field_and_nothing_is_written(personas: Personas, h100: None):
    node = personas.nodes["acme/research/vision"]
    sent = {"kind": "team", "weight": "1", "priority": "100", "share-H100-guaranteed": "4.5", "share-H100-limit": "2", "revision": node.revision}

    answer = personas.client("quota_admin").post(reverse("quota-edit", args=[node.public_id]), sent)

    assert answer.status_code == 422
    assert answer.context["form"].shares[0].errors["limit"] == ["The limit must be at least the guarantee, 4.5."]
    sent["share-H100-limit"] = ""
    answer = personas.client("quota_admin").post(reverse("quota-edit", args=[node.public_id]), sent)
    assert answer.context["form"].shares[0].errors["guaranteed"] == [
        "With it, all below acme/research are promised 8.5 of H100; acme/research itself has 8."
    ]
    assert not QuotaShare.objects.filter(node=node).exists()


def test_every_amount_that_cannot_be_is_told_at_once(personas: Personas, h100: None):
    node = personas.nodes["acme/research/vision"]
    sent = {"kind": "team", "weight": "1", "priority": "100", "share-H100-guaranteed": "-4", "share-H100-limit": "many", "revision": node.revision}

    answer = personas.client("quota_admin").post(reverse("quota-edit", args=[node.public_id]), sent)

    assert answer.context["form"].shares[0].errors == {
        "guaranteed": ["Enter 0 or more."],
        "limit": ["Write a number such as 8 or 0.5, or “unlimited”."],
    }
    assert 'value="-4"' in answer.content.decode()


def applied(client: Client, address: str, sent: dict[str, object]) -> None:
    """The edit of a node, whose page shows a preview first, and then applied there."""
    draft = client.post(address, sent)["Location"]
    change = QuotaChange.objects.latest("pk")
    assert draft == reverse("quota-change", args=[change.public_id])
    client.post(reverse("quota-change-step", args=[change.public_id]), {"step": "apply", "revision": change.revision})


def test_an_edit_is_kept_with_its_reason(personas: Personas, h100: None):
    node = personas.nodes["acme/research/vision"]
    sent = {"kind": "team", "weight": "2", "priority": "100", "share-H100-guaranteed": "4", "revision": node.revision, "reason": "Agreed in May"}

    applied(personas.client("quota_admin"), reverse("quota-edit", args=[node.public_id]), sent)

    entry = AuditEntry.objects.get(action="quota.update")
    assert entry.reason == "Agreed in May"
    assert entry.after == {"weight": 2, "H100.guaranteed_milli": 4000}


def test_the_second_of_two_editors_is_told(personas: Personas, h100: None):
    node = personas.nodes["acme/research/vision"]
    sent = {"kind": "team", "weight": "2", "priority": "100", "revision": node.revision}
    applied(personas.client("quota_admin"), reverse("quota-edit", args=[node.public_id]), sent)

    answer = personas.client("quota_admin").post(reverse("quota-edit", args=[node.public_id]), sent | {"weight": "3"})

    assert answer.status_code == 422
    assert "Somebody else changed this node" in answer.content.decode()
    assert QuotaNode.objects.get(pk=node.pk).weight == 2


def test_who_may_not_decide_is_not_asked_for_numbers(personas: Personas, h100: None):
    own = personas.nodes["acme/research"]

    text = _page(personas.client("quota_admin"), "quota-edit", own.public_id)

    assert "share-H100-guaranteed" not in text
    assert "Only managers of the parent node can change what this node is guaranteed." in text


def test_a_person_is_made_and_sets_a_password_by_link(personas: Personas):
    answer = personas.client("superuser").post(reverse("person-new"), {"username": "ada", "display_name": "Ada Lund", "email": ""})
    link = answer.context["link"]
    browser = Client()
    form = browser.get(link, follow=True)

    assert User.objects.get(username="ada").has_usable_password() is False
    answer = browser.post(form.request["PATH_INFO"], {"new_password1": "plum tree in may", "new_password2": "plum tree in may"})
    assert answer.status_code == 302
    assert browser.post(reverse("account_login"), {"login": "ada", "password": "plum tree in may"}).status_code == 302
    assert "used up" in Client().get(link, follow=True).content.decode()
    assert AuditEntry.objects.filter(action="person.password", actor__username="ada").exists()


def test_a_reset_ends_the_sessions(personas: Personas):
    viewer = personas.client("viewer")
    assert viewer.get(reverse("profile")).status_code == 200

    personas.client("superuser").post(reverse("person-reset", args=[personas.users["viewer"].public_id]))

    assert viewer.get(reverse("profile")).status_code == 302


def test_a_deactivated_person_is_out_at_once(personas: Personas):
    token = personas.token("viewer", "read")
    viewer = personas.client("viewer")

    personas.client("superuser").post(reverse("person-active", args=[personas.users["viewer"].public_id]), {"active": "no"})

    assert viewer.get(reverse("profile")).status_code == 302
    assert Client().get("/api/v1/me", headers={"Authorization": f"Bearer {token}"}).status_code == 401


def test_a_role_is_given_on_the_node_and_taken_again(personas: Personas):
    node = personas.nodes["acme/research/nlp"]
    lead = personas.client("team_lead")

    lead.post(reverse("role-new", args=[node.public_id]), {"holder": "Stranger", "role": "submitter"})
    binding = RoleBinding.objects.get(user=personas.users["stranger"])

    assert (binding.role, binding.node) == (Role.SUBMITTER, node)
    assert personas.client("stranger").get(reverse("quota", args=[node.public_id])).status_code == 200
    lead.post(reverse("role-end", args=[node.public_id, binding.pk]))
    assert personas.client("stranger").get(reverse("quota", args=[node.public_id])).status_code == 403


def test_a_role_beyond_ones_own_is_not_offered_and_not_given(personas: Personas):
    node = personas.nodes["acme/research/nlp"]

    answer = personas.client("team_lead").post(reverse("role-new", args=[node.public_id]), {"holder": "stranger", "role": "operator"})

    assert answer.status_code == 422
    assert not RoleBinding.objects.filter(user=personas.users["stranger"]).exists()


def test_a_tokens_secret_is_shown_once(personas: Personas):
    client = personas.client("viewer")
    answer = client.post(reverse("token-new"), {"name": "nightly", "scopes": ["read"], "lifetime": "30"})
    secret = answer.context["secret"]

    assert answer["Cache-Control"] == "no-store"
    assert secret in answer.content.decode()
    assert secret not in _page(client, "tokens")
    assert secret not in str(ServiceToken.objects.values_list("digest", "prefix", "name").get())
    client.post(reverse("token-revoke", args=[ServiceToken.objects.get().public_id]))
    assert Client().get("/api/v1/me", headers={"Authorization": f"Bearer {secret}"}).json()["detail"] == "This token was revoked."


def test_the_audit_shows_a_subtree_to_its_admin(personas: Personas):
    operator, admin = personas.client("operator"), personas.client("quota_admin")
    personas.client("superuser").post(
        reverse("token-new"), {"name": "x", "scopes": ["read"], "lifetime": "7", "node": personas.nodes["acme/product"].public_id}
    )
    personas.client("superuser").post(
        reverse("token-new"), {"name": "y", "scopes": ["read"], "lifetime": "7", "node": personas.nodes["acme/research"].public_id}
    )

    assert AuditEntry.objects.filter(action="token.create").count() == 2
    assert _page(operator, "audit").count(">token.create<") == 2
    assert _page(admin, "audit").count(">token.create<") == 1
    entry = AuditEntry.objects.get(action="token.create", quota_path="acme/product")
    assert "acme/product" in _page(operator, "audit-entry", entry.pk)
    assert admin.get(reverse("audit-entry", args=[entry.pk])).status_code == 404


@pytest.mark.parametrize("hostile", ["<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "{{ 7*7 }}", "=HYPERLINK(1)"])
def test_what_people_type_is_text_everywhere(personas: Personas, hostile: str):
    client = personas.client("superuser")
    node = personas.nodes["acme"]
    sent = {"kind": "org", "weight": node.weight, "priority": node.priority, "title": hostile, "revision": 1, "reason": hostile}
    applied(client, reverse("quota-edit", args=[node.public_id]), sent)
    client.post(reverse("person-new"), {"username": "eve", "display_name": hostile})
    entry = AuditEntry.objects.get(action="quota.update")
    eve = User.objects.get(username="eve")

    for name, *arguments in (("quotas",), ("quota", node.public_id), ("people",), ("person", eve.public_id), ("audit",), ("audit-entry", entry.pk)):
        text = _page(client, name, *arguments)
        assert "<script>alert" not in text
        assert "<img src=x" not in text
    lines = b"".join(client.get(reverse("people"), {"format": "csv"}).streaming_content).decode()
    assert "\n=" not in lines
    assert QuotaNode.objects.get(pk=node.pk).title == hostile


# ---- What takes something away says so first


def test_a_role_is_taken_away_after_saying_what_that_does(personas: Personas):
    node, binding = personas.nodes["acme/research/nlp"], RoleBinding.objects.get(user=personas.users["viewer"])
    lead, address = personas.client("team_lead"), reverse("role-end", args=[node.public_id, binding.pk])
    assert address in _page(lead, "quota", node.public_id)

    asked = lead.get(address).content.decode()

    assert "Viewer can no longer do what a viewer may do on acme/research/nlp" in asked
    assert "It is their last role" in asked
    assert RoleBinding.objects.filter(pk=binding.pk).exists()
    done = lead.post(address, {"reason": "Moved on"}, follow=True).content.decode()
    assert "Viewer is no longer viewer on acme/research/nlp." in done
    assert AuditEntry.objects.get(action="role.revoke").reason == "Moved on"


def test_the_end_of_a_groups_rule_says_whom_it_touches(personas: Personas):
    node = personas.nodes["acme/research/nlp"]
    rule = RoleBinding.objects.create(group="ml", role=Role.VIEWER, node=node)
    builders.role(personas.users["stranger"], Role.VIEWER, node)
    RoleBinding.objects.filter(user=personas.users["stranger"]).update(from_sign_on=True)

    asked = personas.client("team_lead").get(reverse("role-end", args=[node.public_id, rule.pk])).content.decode()

    assert "1 person who got the role by this rule loses it at once." in asked


def test_a_role_of_another_node_is_not_ended_by_this_address(personas: Personas):
    binding = RoleBinding.objects.get(user=personas.users["operator"])
    address = reverse("role-end", args=[personas.nodes["acme/research"].public_id, binding.pk])

    assert personas.client("superuser").post(address).status_code == 404
    assert RoleBinding.objects.filter(pk=binding.pk).exists()


def test_a_person_is_deactivated_after_saying_what_that_does(personas: Personas):
    personas.token("viewer", "read")
    viewer, root = personas.users["viewer"], personas.client("superuser")
    address = reverse("person-active", args=[viewer.public_id])
    assert address in _page(root, "person", viewer.public_id)

    asked = root.get(address).content.decode()

    assert "1 service token of theirs stops working." in asked
    assert "Viewer is deactivated and shut out." in root.post(address, {"reason": ""}, follow=True).content.decode()
    assert "Viewer is active." in root.post(address, {"active": "yes"}, follow=True).content.decode()


def test_who_may_not_be_deactivated_stays_and_the_page_says_why(personas: Personas):
    answer = personas.client("superuser").post(reverse("person-active", args=[personas.users["superuser"].public_id]))

    assert answer.status_code == 422
    assert "You can&#x27;t deactivate yourself" in answer.content.decode()


def test_a_reset_says_what_ends_before_it_ends(personas: Personas):
    root, address = personas.client("superuser"), reverse("person-reset", args=[personas.users["viewer"].public_id])

    assert "You are shown a link, once" in root.get(address).content.decode()
    answer = root.post(address)
    assert answer["Cache-Control"] == "no-store"
    assert "/accounts/password/first/" in answer.context["link"]


def test_a_token_that_made_others_says_so_before_it_is_revoked(personas: Personas):
    personas.token("viewer", "read", "admin")
    first = ServiceToken.objects.get()
    personas.token("viewer", "read")
    ServiceToken.objects.exclude(pk=first.pk).update(made_with=first, name="nightly")
    client, address = personas.client("viewer"), reverse("token-revoke", args=[first.public_id])

    assert "So does what uses nightly, made with it." in client.get(address).content.decode()
    assert "Programs that use it are refused from now on." in client.post(address, follow=True).content.decode()
    assert not ServiceToken.objects.filter(revoked_at__isnull=True).exists()


def test_archiving_says_what_becomes_free_and_what_ends(personas: Personas, h100: None):
    node = personas.nodes["acme/research/nlp"]
    address = reverse("quota-archive", args=[node.public_id])
    admin = personas.client("quota_admin")

    asked = " ".join(admin.get(address).content.decode().split())

    assert "Its guarantee is free for its siblings: 4 H100." in asked
    assert "3 roles on it end." in asked
    assert "is archived: its guarantee is free" in admin.post(address, {"revision": 1}, follow=True).content.decode()


def test_the_audit_says_amounts_in_gpus(personas: Personas, h100: None):
    admin = personas.client("quota_admin")
    nlp = personas.nodes["acme/research/nlp"]
    sent = {"kind": "team", "weight": "1", "priority": "100", "share-H100-guaranteed": "2.5", "revision": nlp.revision}
    applied(admin, reverse("quota-edit", args=[nlp.public_id]), sent)

    text = _page(admin, "audit-entry", AuditEntry.objects.get(action="quota.update").pk)

    assert "<del>4</del>" in text and "<ins>2.5</ins>" in text
    assert "milli" not in text


def test_the_top_has_fleet_wide_rules_in_its_form_and_on_its_page(personas: Personas, h100: None):
    top, client = personas.nodes["acme"], personas.client("superuser")
    address = reverse("quota-edit", args=[top.public_id])
    kept = {f"share-H100-{name}": client.get(address).context["form"].shares[0][name].value() or "" for name in ("guaranteed", "limit")}
    sent = {"kind": "org", "weight": "1", "priority": "100", "revision": top.revision, **kept}
    ruled = {"policy_half_life_s": "7d", "policy_usage_weight_millionths": "0.5", "policy_sharing_trust": "quota", "policy_worth_batch_gpu_s": "2.5"}

    applied(client, address, sent | ruled)

    top.refresh_from_db()
    assert top.policy == {"half_life_s": 604_800, "usage_weight_millionths": 500_000, "sharing_trust": "quota", "worth_batch_gpu_s": 9000}
    page = _page(client, "quota", top.public_id)
    for title, told in (("Usage half-life", "7\xa0d"), ("Usage weight", "0.5"), ("Sharing trust", "One queue"), ("Worth, batch", "2.5 GPU-hours")):
        assert f"<dt>{title}</dt><dd>{told}</dd>" in page
    form = client.get(address).content.decode()
    assert all(f'value="{shown}"' in form for shown in ("7d", "0.5", "2.5"))
    answer = client.post(address, sent | ruled | {"revision": top.revision, "policy_half_life_s": "5s", "policy_max_wait_batch_s": "soon"})
    assert "Write a length such as 90m, 12h or 7d." in answer.content.decode()
    answer = client.post(address, sent | ruled | {"revision": top.revision, "policy_half_life_s": "5s"})
    assert answer.context["form"].errors["policy_half_life_s"] == ["It must be a whole number between 60 and 31,622,400."]
    applied(client, address, sent | {"revision": top.revision})
    top.refresh_from_db()
    assert top.policy == {}


def test_nodes_below_the_top_have_no_fleet_wide_rules(personas: Personas, h100: None):
    assert "policy_half_life_s" not in _page(personas.client("superuser"), "quota-edit", personas.nodes["acme/research"].public_id)
