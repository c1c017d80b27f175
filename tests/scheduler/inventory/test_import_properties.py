"""Whatever a file says, once it is applied there is nothing left to change, and the rules of the hardware hold."""

import json

import pytest
from django.db import transaction
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpufleet.core.audit import SYSTEM
from quotas.permissions import Access, Can, Grant
from scheduler.engine.model.mig import BOARDS, valid_layout
from scheduler.hardware.layouts import layouts
from scheduler.models import Gpu, GpuMode, MigInstance, Node
from scheduler.services.hardware.geometry import geometry_of
from scheduler.services.hardware.imports import import_apply, import_plan, import_preview
from tests.builders import NOON

pytestmark = pytest.mark.django_db
BOARD = BOARDS["H100-80"]
LAYOUTS = list(layouts(BOARD, ["1g.10gb", "2g.20gb", "3g.40gb", "4g.40gb"]))[1:]
ACCESS = Access(SYSTEM, (Grant("", frozenset(Can)),))


def split(layout):
    return [{"profile": part.profile, "start": part.start} for part in layout]


GPUS = st.integers(0, 3) | st.lists(
    st.fixed_dictionaries(
        {"index": st.integers(0, 3)}, optional={"numa_node": st.none() | st.integers(0, 1), "mode": st.sampled_from(["whole", "mps"])}
    ),
    max_size=3,
    unique_by=lambda gpu: gpu["index"],
)
NODES = st.fixed_dictionaries(
    {"name": st.sampled_from(["n1", "n2", "n3"]), "cluster": st.just("c")},
    optional={
        "gpu_type": st.just("H100-SXM-80GB"),
        "path": st.none() | st.sampled_from(["s1", "s1/l1", "s2/l1"]),
        "pool": st.none() | st.sampled_from(["a", "b"]),
        "spare": st.booleans(),
        "cpus": st.none() | st.integers(0, 3),
        "labels": st.none() | st.dictionaries(st.sampled_from(["x", "y"]), st.sampled_from(["1", "no", "~ "]), max_size=2),
        "gpus": GPUS,
        "nics": st.lists(st.sampled_from(["m0", "m1"]), unique=True).map(lambda names: [{"name": name, "speed_gbps": 100} for name in names]),
        "split": st.sampled_from(LAYOUTS),
    },
)
FILES = st.lists(NODES, max_size=3, unique_by=lambda node: node["name"])


def text_of(nodes):
    """The drawn nodes as a file; a split goes to the first GPU, where there is one."""
    written = []
    for drawn in nodes:
        node = {key: value for key, value in drawn.items() if key != "split"}
        gpus = node.get("gpus", 0)
        indices = [gpu["index"] for gpu in gpus if "mode" not in gpu] if isinstance(gpus, list) else list(range(gpus))
        if "split" in drawn and indices:
            node["mig"] = [{"gpu": indices[0], "instances": split(drawn["split"])}]
        if gpus:
            node["gpu_type"] = "H100-SXM-80GB"
        written.append(node)
    return json.dumps({"clusters": [{"name": "c", "levels": ["spine", "leaf"]}], "nodes": written})


@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(files=st.lists(FILES, min_size=1, max_size=3), remove=st.booleans())
def test_after_an_import_there_is_nothing_left_to_change(files, remove):
    with transaction.atomic():
        for nodes in files:
            text = text_of(nodes)
            preview = import_preview(access=ACCESS, text=text, form="json", source="drawn", remove_missing=remove, now=NOON)
            assert [str(fault) for fault in preview.faults] == []
            if preview.upload is not None:
                import_apply(access=ACCESS, upload=preview.upload, now=NOON)
            left = import_plan(text=text, form="json", remove_missing=remove)
            assert (left.faults, left.effective) == ([], [])
            named = {node["name"] for node in nodes}
            present = set(Node.objects.filter(removed_at__isnull=True).values_list("name", flat=True))
            assert named <= present
            assert not remove or not named or present == named
            for gpu in Gpu.objects.filter(removed_at__isnull=True):
                layout = geometry_of(list(MigInstance.objects.filter(gpu=gpu, removed_at__isnull=True)))
                assert valid_layout(BOARD, layout)
                assert not layout or gpu.mode == GpuMode.MIG
        transaction.set_rollback(True)
