"""Reading the quota tree. What lies outside the reader's subtrees does not exist for them."""

from typing import NamedTuple

from django.core.exceptions import ValidationError
from django.db.models import Case, Exists, OuterRef, Q, QuerySet, Value, When
from django.shortcuts import get_object_or_404

from gpufleet.core.keyset import BadToken, Key, Slice, keyset_page
from quotas.models import QuotaNode, QuotaShare, Role, RoleBinding
from quotas.permissions import Access, Can, nodes_visible


def node_for(access: Access, public_id: str, capability: Can = Can.SEE) -> QuotaNode:
    """One node, archived or not. 404 where the reader may not see it, 403 where they see it and lack the capability."""
    visible = QuotaNode.objects.filter(access.visible(Can.SEE)).select_related("parent").prefetch_related("shares")
    node = get_object_or_404(visible, public_id=public_id)
    access.must(capability, node.path)
    return node


def tree_list(access: Access, *, search: str = "", archived: bool = False, capability: Can = Can.SEE) -> QuerySet[QuotaNode]:
    """The visible nodes in the order of the tree, with their shares."""
    nodes = QuotaNode.objects.filter(access.visible(capability), archived_at__isnull=not archived).select_related("parent")
    for word in search.split():
        nodes = nodes.filter(Q(path__icontains=word) | Q(title__icontains=word) | Q(cost_centre__icontains=word) | Q(public_id=word))
    return nodes.prefetch_related("shares").order_by("path")


class Outline(NamedTuple):
    """Where a node stands in the tree, without all that is said of it."""

    pk: int
    public_id: str
    path: str
    depth: int
    parent_id: int | None


def tree_outline(access: Access) -> list[Outline]:
    """All visible nodes in the order of the tree, for pages that show few of them."""
    rows = nodes_visible(access).order_by("path").values_list("pk", "public_id", "path", "depth", "parent_id")
    return [Outline(*row) for row in rows]


def types_stated(access: Access, *, archived: bool = False) -> list[str]:
    """The GPU types that visible nodes have a share of: those in use, or the archived ones."""
    shares = QuotaShare.objects.filter(access.visible(Can.SEE, "node__path"), node__archived_at__isnull=not archived)
    return list(shares.order_by("gpu_type").values_list("gpu_type", flat=True).distinct())


def tree_page(nodes: QuerySet[QuotaNode], *, size: int, after: str = "") -> Slice:
    """A part of what `tree_list` found, from the place `after` on."""
    try:
        return keyset_page(nodes, order=[Key("path")], size=size, after=after)
    except BadToken as fault:
        raise ValidationError({"after": [f"{fault}."]}) from fault


def child_list(node: QuotaNode) -> QuerySet[QuotaNode]:
    return node.children.filter(archived_at__isnull=True).prefetch_related("shares").order_by("name")


def roles_on(node: QuotaNode) -> list[RoleBinding]:
    """Who has a role on the node, by binding on it or above it, the nearest first. Group rules are among them."""
    steps = node.path.split("/")
    paths = ["/".join(steps[: depth + 1]) for depth in range(len(steps))]
    bindings = RoleBinding.objects.filter(node__path__in=paths, node__archived_at__isnull=True).select_related("user", "node")
    order = list(Role)
    return sorted(
        bindings, key=lambda binding: (-binding.node.depth, order.index(Role(binding.role)), str(binding.user or binding.group), binding.pk)
    )


def leaves_where(access: Access, capability: Can) -> list[str]:
    """The paths of nodes with nothing below them, where a capability holds."""
    return list(_leaves(access, capability).order_by("path").values_list("path", flat=True))


def leaves_like(access: Access, capability: Can, typed: str, *, most: int) -> list[str]:
    """The same of those whose paths hold each typed word: first those whose own name begins with what is typed."""
    nodes = _leaves(access, capability)
    for word in typed.split():
        nodes = nodes.filter(path__icontains=word)
    called = Case(When(name__istartswith=typed.strip(), then=Value(0)), default=Value(1))
    return list(nodes.order_by(called, "path").values_list("path", flat=True)[:most])


def _leaves(access: Access, capability: Can) -> QuerySet[QuotaNode]:
    inner = Exists(QuotaNode.objects.filter(parent=OuterRef("pk"), archived_at__isnull=True))
    return QuotaNode.objects.filter(~inner, access.visible(capability), archived_at__isnull=True)
