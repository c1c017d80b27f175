"""Who may give which role to whom, and that nobody climbs."""

import contextlib
import threading
from typing import Any

import pytest
from django.core.exceptions import PermissionDenied, ValidationError
from django.db import connection
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.django import TestCase

from gpufleet.core.audit import SYSTEM
from gpufleet.core.models import AuditEntry, User
from quotas.models import QuotaNode, Role, RoleBinding
from quotas.permissions import Access, Can, Grant, access_for_user, exceeds, is_within
from quotas.services.people import person_create, person_deactivate, person_reset_password, person_update
from quotas.services.roles import may_hand_out, role_grant, role_revoke, roles_follow_groups, roles_to_hand_out
from tests import builders
from tests.builders import NOON
from tests.personas import PLACES, Personas, grow, person


def test_each_role_hands_out_what_it_holds_itself(personas: Personas):
    offered = {name: {str(role) for role in roles_to_hand_out(personas.access(name), PLACES[name][1])} for name in PLACES}

    assert offered == {
        "viewer": set(),
        "submitter": set(),
        "team_lead": {"viewer", "submitter", "team_lead"},
        "quota_admin": {"viewer", "quota_admin"},  # not finance, which changes prices and closes months
        "operator": set(),
        "finance": set(),
    }


def test_finance_is_given_by_superusers_and_the_page_says_so(personas: Personas):
    """Finance changes prices and closes months, which a quota admin may not: not even in the own subtree is the role theirs to give."""
    node, client = personas.nodes["acme/research"], personas.client("quota_admin")
    page = client.get(f"/quotas/{node.public_id}/").content.decode()
    assert "Superusers give roles with rights that you do not have here: Submitter, Team lead, Operator, Finance, Superuser." in page

    with pytest.raises(PermissionDenied, match="more rights than your own"):
        role_grant(access=personas.access("quota_admin"), node=node, role=Role.FINANCE, user=personas.users["stranger"], now=NOON)
    role_grant(access=personas.access("superuser"), node=node, role=Role.FINANCE, user=personas.users["stranger"], now=NOON)


@pytest.mark.parametrize("giver", sorted(PLACES))
@pytest.mark.parametrize("role", Role.values)
@pytest.mark.parametrize("path", ["acme", "acme/research", "acme/research/nlp", "acme/product"])
def test_nobody_can_do_more_after_granting_to_themselves(personas: Personas, giver: str, role: str, path: str):
    user, before = personas.users[giver], personas.access(giver)
    with contextlib.suppress(PermissionDenied, ValidationError):
        role_grant(access=before, node=personas.nodes[path], role=role, user=user, now=NOON)

    assert not exceeds(access_for_user(user), before)


def test_roles_beyond_ones_own_are_not_taken_away_either(personas: Personas):
    admin = RoleBinding.objects.create(user=personas.users["stranger"], role=Role.QUOTA_ADMIN, node=personas.nodes["acme/research/nlp"])
    with pytest.raises(PermissionDenied):
        role_revoke(access=personas.access("team_lead"), binding=admin)

    role_revoke(access=personas.access("quota_admin"), binding=admin)
    assert AuditEntry.objects.get(action="role.revoke").before["role"] == "quota_admin"


@pytest.mark.parametrize("victim", ["superuser", "operator", "team_lead", "stranger"])
def test_nobody_takes_over_an_account_that_can_do_more(personas: Personas, victim: str):
    """A quota admin of the whole tree manages people, but not those whose roles hold what theirs does not."""
    boss = builders.person("boss")
    builders.role(boss, Role.QUOTA_ADMIN, personas.nodes["acme"])
    access, user = access_for_user(boss), personas.users[victim]
    acts = (
        lambda: person_reset_password(access=access, person=user),
        lambda: person_deactivate(access=access, person=user),
        lambda: person_update(access=access, person=user, display_name="X", email="boss@example.org"),
    )
    for act in acts:
        if victim == "stranger":
            act()
        else:
            with pytest.raises(PermissionDenied):
                act()


def test_the_last_superuser_stays(personas: Personas):
    deputy = builders.person("deputy")
    builders.role(deputy, Role.SUPERUSER, personas.nodes["acme"])
    person_deactivate(access=personas.access("superuser"), person=deputy)

    with pytest.raises(ValidationError):
        person_deactivate(access=personas.access("superuser"), person=personas.users["superuser"])


@pytest.mark.django_db(transaction=True)
def test_two_superusers_do_not_shut_each_other_out(personas: Personas):
    pair = [personas.users["superuser"], person("second", superuser=True)]
    both_checked, outcomes = threading.Barrier(2), []

    def held_before_writing(execute: Any, sql: str, *rest: Any) -> Any:
        if sql.startswith("UPDATE"):
            # The other one comes here too if nothing keeps it from looking; where something does, there is nobody to wait for.
            with contextlib.suppress(threading.BrokenBarrierError):
                both_checked.wait(1)
        return execute(sql, *rest)

    def shut_out(access: Access, other: User) -> None:
        try:
            with connection.execute_wrapper(held_before_writing):
                person_deactivate(access=access, person=other)
            outcomes.append("done")
        except ValidationError:
            outcomes.append("refused")
        finally:
            connection.close()

    # Both asked before either wrote.
    threads = [threading.Thread(target=shut_out, args=(access_for_user(one), other)) for one, other in (pair, pair[::-1])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)

    assert sorted(outcomes) == ["done", "refused"]
    assert User.objects.filter(is_superuser=True, is_active=True).count() == 1


def test_the_last_superusers_role_stays(personas: Personas):
    User.objects.filter(is_superuser=True).update(is_superuser=False)
    root = builders.person("root")
    role = builders.role(root, Role.SUPERUSER, personas.nodes["acme"])
    with pytest.raises(ValidationError):
        role_revoke(access=access_for_user(root), binding=role)

    builders.role(builders.person("deputy"), Role.SUPERUSER, personas.nodes["acme"])
    role_revoke(access=access_for_user(root), binding=role)
    assert access_for_user(root).grants == ()


@pytest.mark.parametrize("username", ["", "Ä", "a b", "-x", "x" * 151, "viewer", "VIEWER"])
def test_bad_and_taken_user_names_are_refused(personas: Personas, username: str):
    with pytest.raises(ValidationError) as raised:
        person_create(access=personas.access("superuser"), username=username, display_name="X")
    assert "username" in raised.value.message_dict


def test_groups_give_and_take_roles_at_sign_in(personas: Personas):
    root, user, nodes = personas.access("superuser"), personas.users["stranger"], personas.nodes
    role_grant(access=root, node=nodes["acme/product"], role="viewer", group="product", now=NOON)
    role_grant(access=root, node=nodes["acme/research"], role="team_lead", group="leads", now=NOON)
    role_grant(access=root, node=nodes["acme/research/nlp"], role="viewer", user=user, now=NOON)

    roles_follow_groups(user=user, groups=["product", "leads", "unknown"], actor=SYSTEM, now=NOON)
    assert set(user.role_bindings.values_list("role", "node__path")) == {
        ("viewer", "acme/product"),
        ("team_lead", "acme/research"),
        ("viewer", "acme/research/nlp"),
    }
    roles_follow_groups(user=user, groups=["product"], actor=SYSTEM, now=NOON)
    assert set(user.role_bindings.values_list("role", "node__path")) == {("viewer", "acme/product"), ("viewer", "acme/research/nlp")}
    roles_follow_groups(user=user, groups=["product"], actor=SYSTEM, now=NOON)
    assert AuditEntry.objects.filter(action__in=["role.grant", "role.revoke"], object_id=user.public_id).count() == 4


def test_the_end_of_a_rule_takes_what_it_gave(personas: Personas):
    root, user, node = personas.access("superuser"), personas.users["stranger"], personas.nodes["acme/product"]
    rule = role_grant(access=root, node=node, role="viewer", group="product", now=NOON)
    roles_follow_groups(user=user, groups=["product"], actor=SYSTEM, now=NOON)

    role_revoke(access=root, binding=rule)

    assert not user.role_bindings.exists()


def test_a_hand_given_role_outlives_the_groups(personas: Personas):
    root, user, node = personas.access("superuser"), personas.users["stranger"], personas.nodes["acme/product"]
    role_grant(access=root, node=node, role="viewer", group="product", now=NOON)
    roles_follow_groups(user=user, groups=["product"], actor=SYSTEM, now=NOON)
    role_grant(access=root, node=node, role="viewer", user=user, now=NOON)

    roles_follow_groups(user=user, groups=[], actor=SYSTEM, now=NOON)

    assert user.role_bindings.exists()


# ---- Properties on random trees

NAMES = st.sampled_from(["a", "b", "ab", "a-b", "a_b", "x1"])
# There is one top; what lies below it is what differs.
PATHS = st.lists(NAMES, max_size=3).map(lambda steps: "/".join(["a", *steps]))
CAPABILITIES = st.frozensets(st.sampled_from(list(Can)), max_size=4)
GRANTS = st.lists(st.builds(Grant, st.one_of(st.just(""), PATHS), CAPABILITIES), max_size=4).map(tuple)
ACCESSES = st.builds(Access, st.just(SYSTEM), GRANTS)


class PermissionProperties(TestCase):
    @settings(max_examples=60)
    @given(st.sets(PATHS, max_size=12), ACCESSES, st.sampled_from(list(Can)))
    def test_the_database_and_the_function_agree(self, paths: set[str], access: Access, capability: Can) -> None:
        nodes = grow(*sorted(paths)) if paths else {}

        visible = set(QuotaNode.objects.filter(access.visible(capability)).values_list("path", flat=True))

        assert visible == {path for path in nodes if access.can(capability, path)}


@given(ACCESSES, CAPABILITIES, st.one_of(st.just(""), PATHS), PATHS, st.sampled_from(list(Can)))
def test_narrowing_never_widens_and_keeps_what_both_allow(access: Access, kept: frozenset[Can], subtree: str, path: str, capability: Can):
    narrow = access.narrowed(kept, subtree, SYSTEM)

    both = access.can(capability, path) and capability in kept and is_within(path, subtree)
    assert narrow.can(capability, path) == both
    assert not narrow.can_everywhere(capability) or access.can_everywhere(capability)


@given(ACCESSES, PATHS, st.sampled_from(list(Role)))
def test_what_is_handed_out_is_held(access: Access, path: str, role: Role):
    if may_hand_out(access, role, path):
        gift = Access(SYSTEM, (Grant(path, access.capabilities_at(path)),))
        assert not exceeds(gift, access)
        assert access.can(Can.MANAGE_PEOPLE, path)


def test_an_inactive_person_may_do_nothing(personas: Personas):
    User.objects.filter(pk=personas.users["operator"].pk).update(is_active=False)

    assert access_for_user(User.objects.get(username="operator")).grants == ()


def test_a_groups_rule_does_not_go_with_the_last_superuser(personas: Personas):
    User.objects.filter(is_superuser=True).update(is_superuser=False)
    root = personas.nodes["acme"]
    RoleBinding.objects.filter(role=Role.SUPERUSER).delete()
    rule = RoleBinding.objects.create(group="admins", role=Role.SUPERUSER, node=root)
    admin = person("rule-made")
    roles_follow_groups(user=admin, groups=["admins"], actor=SYSTEM, now=NOON)

    with pytest.raises(ValidationError, match="last superuser"):
        role_revoke(access=access_for_user(admin), binding=rule)

    assert Can.ADMINISTER in access_for_user(admin).capabilities_at("acme")
    role_grant(access=access_for_user(admin), node=root, role=Role.SUPERUSER, user=person("second"), now=NOON)
    role_revoke(access=access_for_user(admin), binding=rule)
    assert not access_for_user(admin).grants
