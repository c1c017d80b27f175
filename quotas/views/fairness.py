"""Why a node of the quota tree gets what it gets: its past usage, its fair share and what it held, over time."""

from typing import Any

from django.http import HttpRequest, HttpResponseBase
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_safe

from dashboards.marks import quota_marks
from gpufleet.core.charts import Chart, Series, chart_response, over_time
from gpufleet.core.live.feed import feed_revision
from gpufleet.core.ranges import range_of
from gpufleet.core.times import now
from gpufleet.web import Can, access_of, requires
from quotas.models import QuotaNode
from quotas.selectors.nodes import child_list, node_for
from scheduler.loop.policy import fairness_now, policy
from scheduler.presenters.fairness import fairness_course, fairness_rows
from scheduler.selectors.usage import gpu_types_known
from scheduler.selectors.windows import capacity_now
from scheduler.services.forecasts.standing import tree_standing


@require_safe
@requires(Can.SEE)
def fairness(request: HttpRequest, public_id: str) -> HttpResponseBase:
    access, version, at = access_of(request), feed_revision(), now()
    node = node_for(access, public_id)
    types = gpu_types_known()
    asked = request.GET.get("type", "")
    gpu_type = asked if asked in types else next(iter(types), "")
    chosen = range_of(request.GET, "7d")
    rule = fairness_now(policy().engine)
    standing = tree_standing(at)
    capacity = capacity_now().by_type.get(gpu_type, 0)
    course = fairness_course(node, gpu_type, chosen, at, capacity=capacity, half_life=rule.half_life_ms // 1000)
    counts = rule.usage_weight_millionths > 0  # otherwise no plan sums it up, and nought would be no figure
    past = [Series("Past usage", course.decayed, "series-2")]
    chart: Chart = over_time(
        label=f"{node.path}, {gpu_type}, last {chosen.text}",
        unit="GPUs",
        at=course.at,
        series=[
            Series("Allocated", course.allocated, "used"),
            *(past if counts or any(part is not None for part in course.decayed) else ()),
            Series("Fair share", course.fair, "series-3", dashed=True),
        ],
        marks=quota_marks(access, node, since=chosen.begin(at)),
    )
    if request.GET.get("chart"):
        return chart_response(request, chart, name=f"fairness-{node.public_id}")
    context: dict[str, Any] = {
        "version": version,
        "node": node,
        "types": types,
        "gpu_type": gpu_type,
        "range": chosen,
        "chart": chart,
        "source": f"{reverse('fairness', args=[node.public_id])}?type={gpu_type}&chart=1",
        "half_life": rule.half_life_ms // 1000,
        "weight": rule.usage_weight_millionths / 1_000_000,
        "step": (rule.step_ms or 0) // 1000,
        "rows": fairness_rows([node, *child_list(node)], gpu_type, standing, capacity),
        "top": QuotaNode.objects.filter(parent__isnull=True).first() if access.can_everywhere(Can.EDIT_QUOTA) else None,
    }
    return render(request, "quotas/fairness.html", context)
