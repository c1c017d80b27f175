"""What an act that takes something away would do, in sentences, so that whoever is about to do it can decide."""

from gpufleet.core.models import User
from gpufleet.core.times import now
from quotas.models import QuotaNode, Role, RoleBinding, ServiceToken
from quotas.rules import said
from quotas.selectors.people import given_by_rule, made_with_it


def role_end_effects(binding: RoleBinding, reader: User | None) -> list[str]:
    node, role = binding.node.path, Role(binding.role).label.lower()
    if binding.user is None:
        people = len({given.user_id for given in given_by_rule(binding)})
        return [
            f"Members of the group {binding.group} no longer become {role} on {node} when they sign in.",
            f"{_counted(people, 'person')} who got the role by this rule {'loses' if people == 1 else 'lose'} it at once."
            if people
            else "Nobody loses a role now; what members hold by another rule or by hand stays.",
        ]
    who = "You" if binding.user == reader else str(binding.user)
    effects = [f"{who} can no longer do what a {role} may do on {node} and everything below it, from the next request on."]
    others = RoleBinding.objects.filter(user=binding.user, node__archived_at__isnull=True).exclude(pk=binding.pk).select_related("node")
    kept = [f"{Role(other.role).label.lower()} on {other.node.path}" for other in others.order_by("node__path", "role")[:5]]
    effects.append(f"Other roles stay: {', '.join(kept)}." if kept else "It is their last role: without one they see nothing but their profile.")
    if binding.from_sign_on:
        effects.append("It came by single sign-on, and comes back at the next sign-in while the group's rule stands.")
    return effects


def deactivate_effects(person: User) -> list[str]:
    effects = ["With their next request they are signed out everywhere, and can't sign in again until somebody activates them."]
    tokens = _valid_tokens(person)
    effects += [f"{_counted(tokens, 'service token')} of theirs {'stops' if tokens == 1 else 'stop'} working."] if tokens else []
    return [*effects, "Their jobs go on, and their roles wait for them. Everything they did stays in the audit log."]


def reset_effects(person: User) -> list[str]:
    ended = "Their present password becomes useless and all their sessions end at once."
    return [
        ended if person.has_usable_password() else "They have no password now.",
        "You are shown a link, once, to hand to them: it sets a new password, works once, and for three days.",
        "Their service tokens go on working.",
    ]


def token_revoke_effects(token: ServiceToken) -> list[str]:
    made = [row for row in made_with_it(token) if row.state == "valid"]
    effects = ["Whatever uses it stops working at once, for good."]
    if made:
        effects.append(f"So does what uses {', '.join(row.name for row in made[:5])}{' and others' if len(made) > 5 else ''}, made with it.")
    if {"submit", "operate"} & set(token.scopes):
        effects.append("Schedules that it made or changed are paused, until somebody resumes them.")
    return effects


def archive_effects(node: QuotaNode) -> list[str]:
    shares, roles, tokens = _depends_on(node)
    effects = ["No job can be sent to it any more."]
    effects += [f"Its guarantee is free for its siblings: {', '.join(shares)}."] if shares else []
    effects += [f"{_counted(roles, 'role')} on it {'ends' if roles == 1 else 'end'}."] if roles else []
    effects += [f"{_counted(tokens, 'service token')} for it {'stops' if tokens == 1 else 'stop'} working."] if tokens else []
    return [*effects, "Its history stays, and it can be restored with its roles if its guarantee still fits."]


def restore_effects(node: QuotaNode) -> list[str]:
    shares, roles, tokens = _depends_on(node)
    effects = ["Jobs can be sent to it again."]
    effects += [f"Its guarantee holds again: {', '.join(shares)}."] if shares else []
    effects += [f"{_counted(roles, 'role')} on it {'holds' if roles == 1 else 'hold'} again."] if roles else []
    return [*effects, *([f"{_counted(tokens, 'service token')} for it {'works' if tokens == 1 else 'work'} again."] if tokens else [])]


def _depends_on(node: QuotaNode) -> tuple[list[str], int, int]:
    """What it is guaranteed, by type, and how many roles and valid tokens are for it."""
    shares = [f"{said(share.guaranteed_milli)} {share.gpu_type}" for share in node.shares.all() if share.guaranteed_milli != 0]
    tokens = ServiceToken.objects.filter(node=node, revoked_at__isnull=True, expires_at__gt=now()).count()
    return shares, RoleBinding.objects.filter(node=node).count(), tokens


def _valid_tokens(person: User) -> int:
    return ServiceToken.objects.filter(owner=person, revoked_at__isnull=True, expires_at__gt=now()).count()


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun if number == 1 else {'person': 'people'}.get(noun, noun + 's')}"
