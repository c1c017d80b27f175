"""How close together the nodes of a gang stand, and whether it is rail-aligned (INV-3): its GPUs i then meet on one rail switch each."""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from scheduler.models import Domain, Node, TopologyLevel


@dataclass(frozen=True, slots=True)
class Alignment:
    """Of the nodes of one gang. `level` and `domain`: the narrowest domain that has all of them; empty where none has."""

    nodes: int
    level: str = ""
    domain: str = ""
    rail_level: str = ""  # of the cluster; empty where it has no rails, or there are several clusters
    rail_domains: Mapping[str, int] = field(default_factory=dict)  # nodes by domain of that level; an empty name: it is not known

    @property
    def is_aligned(self) -> bool | None:
        """None where there are no rails to be aligned on."""
        return (len(self.rail_domains) == 1 and "" not in self.rail_domains) if self.rail_level else None


def alignment_of(public_ids: Collection[str]) -> Alignment | None:
    """None of a single node, where there is nothing to align."""
    rows = list(Node.objects.filter(public_id__in=public_ids).order_by("id").values_list("cluster_id", "domain_id"))
    if len(rows) < 2:
        return None
    clusters = {cluster for cluster, _ in rows}
    if len(clusters) > 1:
        return Alignment(len(rows))
    levels = list(TopologyLevel.objects.filter(cluster__in=clusters).order_by("depth").values_list("id", "name", "is_rail_level"))
    domains = Domain.objects.filter(cluster__in=clusters).order_by("id").values_list("id", "parent_id", "level_id", "path")
    above = {key: (parent, level, path) for key, parent, level, path in domains}
    trails: list[dict[int, str]] = []
    for _, domain in rows:
        trail: dict[int, str] = {}
        while domain is not None:
            parent, at, path = above[domain]
            trail[at] = path
            domain = parent
        trails.append(trail)
    together = [(name, trails[0][key]) for key, name, _ in levels if len({trail.get(key, "") for trail in trails}) == 1 and key in trails[0]]
    level, domain_path = together[-1] if together else ("", "")
    rail, name = next(((key, name) for key, name, is_rail in levels if is_rail), (0, ""))
    counts = Counter(trail.get(rail, "") for trail in trails) if name else {}
    return Alignment(len(rows), level, domain_path, name, dict(sorted(counts.items())))
