"""Accounts of a Slurm cluster as a draft of a change of the quota tree: it is previewed, approved and applied like every other."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from django.core.exceptions import ValidationError

from quotas.drafts import Edit, edits_between
from quotas.models import OPEN_STATES, QuotaChange
from quotas.permissions import Access, Can
from quotas.rules import said
from quotas.services.changes import Wanted, change_draft
from quotas.services.writing import tree_read
from scheduler.backends.base import BackendError
from scheduler.backends.registry import slurm_settings
from scheduler.backends.slurm.client import SlurmClient
from scheduler.hardware.slurm_accounts import ASSOCIATION, QOS, proposed, site_of
from scheduler.models import Gpu
from scheduler.services.hardware.slurm import slurm_row, types_given

LONGEST_REASON = 500


@dataclass(frozen=True, slots=True)
class AccountsRead:
    """The edits that make the tree what Slurm says, and what of Slurm's it has no place for."""

    edits: tuple[Edit, ...]
    left_out: tuple[str, ...]
    paths: Mapping[str, str]  # of the nodes that the edits name

    @property
    def lines(self) -> list[str]:
        """Each edit for people to read."""
        found = []
        for edit in self.edits:
            told = [f"{name} {value}" for name, value in edit.set.items() if name != "shares"]
            for kind, share in (edit.set.get("shares") or {}).items():
                told.append(f"limit {said(share['limit_milli'])} of {kind}")
            found.append(f"{edit.op} {self.paths.get(edit.node, edit.node)}: {', '.join(told)}")
        return found


def accounts_read(*, access: Access, cluster: str, under: str = "") -> AccountsRead:
    """What Slurm's accounts would change below the node at the path `under`, or the top. Raises BackendError where Slurm does not tell."""
    access.must_everywhere(Can.EDIT_QUOTA)  # all accounts of the site are shown
    row = slurm_row(cluster)
    client = SlurmClient(slurm_settings(row))
    try:
        name = client.config().stated.get("ClusterName", "")
        site = site_of(client.accounting("assoc", ASSOCIATION, f"cluster={name}"), client.accounting("qos", QOS))
    except ValueError as fault:
        raise BackendError(f"sacctmgr printed what it was not asked for: {fault}.") from None
    tree = tree_read()
    live = [state for state in tree.in_order() if not state.archived]
    above = next((state.id for state in live if (tree.paths.get(state.id) == under if under else state.parent is None)), None)
    if above is None:
        raise ValidationError({"under": f"There is no quota node {under}." if under else "There are no quotas yet: create the organisation first."})
    gpus = Gpu.objects.filter(node__cluster=row.cluster, removed_at__isnull=True)
    kinds = gpus.order_by("gpu_type_id").values_list("gpu_type_id", flat=True).distinct()
    found = proposed(tree, site, under=above, types=types_given(row, client.nodes()), types_of_cluster=list(kinds))
    return AccountsRead(tuple(edits_between(tree, found.after)), tuple(found.left_out), found.after.paths)


def accounts_propose(*, access: Access, cluster: str, read: AccountsRead, now: datetime) -> QuotaChange | None:
    """Keep the edits as a draft; the same open draft is not made twice. None: the tree is as Slurm says."""
    if not read.edits:
        return None
    edits = [edit.as_json() for edit in read.edits]
    title = f"Accounts of Slurm cluster {cluster}"
    for change in QuotaChange.objects.filter(state__in=OPEN_STATES, title=title).order_by("-pk"):
        if change.edits == edits:
            return change
    left_out = f"Left out: {'; '.join(read.left_out)}." if read.left_out else ""
    reason = left_out if len(left_out) <= LONGEST_REASON else f"{left_out[: LONGEST_REASON - 1]}…"
    return change_draft(access=access, wanted=Wanted(edits, title=title, reason=reason), now=now)
