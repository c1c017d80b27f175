"""A bad file: every fault with its line and column, all at once, and nothing changed."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scheduler.imports.documents import MAX_DEPTH, Fault, Unreadable, decoded, read
from scheduler.imports.schema import read_document
from scheduler.imports.spreadsheet import tree_of
from scheduler.models import Cluster, Gpu, GpuType, InventoryImport, Node
from scheduler.services.hardware.imports import import_plan, import_preview
from tests.builders import NOON, cluster, node

YAML = """\
format: gpufleet-inventory/2
gpu_types:
  - {name: H100-SXM-80GB, board: H100-81}
  - {name: Odd, memory_gb: -4, colour: red}
clusters:
  - name: north hall
  - name: south
    levels: [spine, leaf, spine]
    levels: [spine]
    pools: [a b]
nodes:
  - cluster: south
  - {name: n1, cluster: south, gpus: "8"}
  - {name: n2, cluster: west, cpus: 1.5}
  - {name: n3, cluster: south, path: s1/l1/x/y/z}
  - {name: n4, cluster: south, health: fine, spare: maybe}
  - {name: n5, cluster: south, gpu_type: H100-SXM-80GB, gpus: 2, islands: [[0, 7]], mig: [{gpu: 0, instances: [{profile: 9g.1gb, start: 0}]}]}
  - {name: n6, cluster: south, gpus: 1}
  - {name: n6, cluster: south}
  - {name: n7, cluster: south, nics: [{name: m0}], gpu: 4}
"""
YAML_FAULTS = """\
1:9: format: “gpufleet-inventory/2” is none of gpufleet-inventory/1
3:34: gpu_types[0].board: “H100-81” is none of A100-40
4:28: gpu_types[1].memory_gb: -4 is out of range
4:32: gpu_types[1].colour: is not known here
6:11: clusters[0].name: “north hall” may hold letters
8:27: clusters[1].levels[2].name: the level spine is there twice
9:5: levels: is there twice; the first is in line 8
10:13: clusters[1].pools[0].name: “a b” may hold letters
12:5: nodes[0].name: is missing
13:38: nodes[1].gpus: must be a number, not “8”
14:5: nodes[2].cluster: there is no cluster west; list it under clusters
14:37: nodes[2].cpus: must be a whole number, not 1.5
15:5: nodes[3].path: “s1/l1/x/y/z” is 5 levels deep; south has 3
16:40: nodes[4].health: “fine” is none of healthy, suspect
16:53: nodes[4].spare: must be true or false
17:80: nodes[5].islands[0]: there is no GPU 7; this node has 0 to 1
17:91: nodes[5].mig[0]: H100-80 has no profile 9g.1gb
18:38: nodes[6].gpu_type: is missing: this node has GPUs
19:12: nodes[7]: the node n6 of south is there twice; the first is in line 18
20:39: nodes[8].nics[0].speed_gbps: is missing
20:52: nodes[8].gpu: is not known here; did you mean gpus?
"""
JSON = """\
{
  "format": "gpufleet-inventory/1",
  "gpu_type": [],
  "gpu_types": [
    {"name": "", "memory_gb": 80},
    {"name": "H100-SXM-80GB", "memory_gb": "80"},
    {"memory_gb": 80, "memory_mib": 81920}
  ],
  "clusters": [
    {"name": "south", "levels": [{"name": "leaf", "rails": "yes", "oversubscription": 0}], "pools": {}},
    {"name": "south"}
  ],
  "nodes": [
    {"name": "a/b", "cluster": "south"},
    {"name": "n1", "cluster": "north"},
    {"name": "n2", "cluster": "south", "gpus": 99},
    {"name": "n3", "cluster": "south", "gpus": [{"uuid": "x"}]},
    {"name": "n4", "cluster": "south", "gpu_type": "Unheard-Of", "gpus": 1},
    {"name": "n5", "cluster": "south", "gpu_type": "H100-SXM-80GB", "gpus": [{"index": 0, "mode": "half"}, {"index": 0}]},
    {"name": "n6", "cluster": "south", "path": {"spine": "s1"}},
    {"name": "n7", "cluster": "south", "labels": ["x"], "unhealthy_gpus": [1]},
    {"name": "n8", "cluster": "south", "cpus": -1, "host_memory_gb": 1e99},
    {"name": "n9", "cluster": "south", "spare": "no", "gpus": {"index": 0}},
    7
  ]
}
"""
JSON_FAULTS = """\
3:3: gpu_type: is not known here; did you mean gpu_types?
5:14: gpu_types[0].name: must not be blank
6:44: gpu_types[1].memory_gb: must be a number, not “80”
7:5: gpu_types[2].name: is missing
7:23: gpu_types[2].memory_mib: says the same as memory_gb; leave one out
10:60: clusters[0].levels[0].rails: must be true or false
10:87: clusters[0].levels[0].oversubscription: 0 is out of range
10:101: clusters[0].pools: must be a list
11:14: clusters[1]: the cluster south is there twice; the first is in line 10
14:14: nodes[0].name: “a/b” may hold letters
15:5: nodes[1].cluster: there is no cluster north
16:48: nodes[2].gpus: 99 is out of range; it can be 0 to 64
17:49: nodes[3].gpus[0].index: is missing
18:5: nodes[4].gpu_type: the type Unheard-Of is new; say its memory
19:99: nodes[5].gpus[0].mode: “half” is none of whole, mig, mps, timeslice
19:108: nodes[5].gpus[1].index: GPU 0 is there twice; the first is in line 19
20:5: nodes[6].path: names spine; the levels of south are leaf
21:50: nodes[7].labels: must be a map of names and texts
21:57: nodes[7].unhealthy_gpus: needs gpus beside it
22:48: nodes[8].cpus: -1 is out of range
22:70: nodes[8].host_memory_gb: 1e99 is out of range
23:49: nodes[9].spare: must be true or false
23:63: nodes[9].gpus: must be a number, not a map
24:5: nodes[10]: must be a map of names and values
"""
CSV = """\
cluster,levels,name,path,gpu_type,gpus,cpus,host_memory_gb,spare,health,labels,mig,nics,colour
south,spine/leaf,n1,s1/l1,H100-SXM-80GB,8,,,,,,,,
south,spine/rack,n2,s1/l1/x,H100-SXM-80GB,eight,,,,,,,,
so uth,,n3,,,,,,,,,,,
,,n4,,,,,,,,,,,
south,,,,,,,,,,,,,
south,,n1,,,,,,,,,,,
south,,n 5,,,,1.5,-3,perhaps,poorly,,,,
south,,n6,,,,,,,,,0:3g.40gb@0,,
south,,n7,,H100-SXM-80GB,2,,,,,,"5:3g.40gb@0;0:4g.40gb@4;1:3g.40gb+1g.10gb@0",mlx5_0,
south,,n8,,,3,,,,,rack=,,mlx5_0:400:x;mlx5_0:400,,extra
"""
CSV_FAULTS = """\
1:89: colour: is not a column; the columns are levels, name, cluster
3:7: levels: “spine/rack” differs from “spine/leaf” in line 2
3:1: nodes[1].path: “s1/l1/x” is 3 levels deep; south has 2: spine, leaf
3:43: nodes[1].gpus: must be a number, not “eight”
4:1: nodes[2].cluster: “so uth” may hold letters
5:1: nodes[3].cluster: is missing
6:1: nodes[4].name: is missing
7:8: nodes[5]: the node n1 of south is there twice; the first is in line 2
8:8: nodes[6].name: “n 5” may hold letters
8:15: nodes[6].cpus: must be a whole number, not 1.5
8:19: nodes[6].host_memory_gb: -3 is out of range
8:22: nodes[6].spare: must be true or false
8:30: nodes[6].health: “poorly” is none of healthy
9:19: nodes[7].mig: needs gpus beside it
10:34: nodes[8].mig[0].gpu: there is no GPU 5; this node has 0 to 1
10:46: nodes[8].mig[1]: 4g.40gb can't start at slice 4 on H100-80; it can at 0
10:60: nodes[8].mig[2].instances[0].start: is missing
10:79: nodes[8].nics[0].speed_gbps: is missing
11:13: nodes[9].gpu_type: is missing: this node has GPUs
11:24: nodes[9].labels.rack: must not be blank
11:37: nodes[9].nics[0].rail: must be a number, not “x”
11:39: nodes[9].nics[1]: the port mlx5_0 is there twice; the first is in line 11
11:51: a value beyond the last column; the header names 14
"""


@pytest.mark.django_db
@pytest.mark.parametrize(("form", "text", "expected"), [("yaml", YAML, YAML_FAULTS), ("json", JSON, JSON_FAULTS), ("csv", CSV, CSV_FAULTS)])
def test_twenty_faults_are_all_told_with_their_places_and_nothing_changes(personas, form, text, expected):
    node("present", of=cluster("south-east"), gpus=1)
    before = [list(model.objects.values()) for model in (Cluster, Node, Gpu, GpuType, InventoryImport)]
    preview = import_preview(access=personas.access("operator"), text=text, form=form, source="bad", remove_missing=True, now=NOON)
    told = [str(fault) for fault in preview.faults]
    wanted = sorted(expected.splitlines(), key=lambda line: [int(part) for part in line.split(":")[:2]])
    assert len(told) >= 20
    assert [line for line, start in zip(told, wanted, strict=False) if not line.startswith(start)] == []
    assert len(told) == len(wanted), told
    assert preview.upload is None
    assert [list(model.objects.values()) for model in (Cluster, Node, Gpu, GpuType, InventoryImport)] == before


BOMBS = {
    "aliases": "a: &a [x, x]\nb: &b [*a, *a]\nc: &c [*b, *b]\nnodes: [*c, *c]\n",
    "cycle": "nodes: &n [*n]\n",
    "tag": "nodes: !!python/object/apply:os.system ['true']\n",
    "depth": "nodes: " + "[" * 5000,
    "braces": "{" * 5000,
    "second": "nodes: []\n---\nnodes: []\n",
    "control": "nodes: \x01\n",
    "unclosed": 'nodes: "abc\n',
    "tab": "nodes:\n\t- a\n",
    "empty": "",
    "comment": "# nothing\n",
    "text": "hello",
    "keys": "? [a, b]\n: 1\n",
}


@pytest.mark.django_db
@pytest.mark.parametrize("name", BOMBS)
def test_files_that_mean_harm_or_nothing_are_refused_at_once(name):
    plan = import_plan(text=BOMBS[name], form="yaml", remove_missing=False)
    assert plan.faults
    assert not plan.changes


@pytest.mark.parametrize("text", ["{", '{"a": 1,}', "[1, 2", '{"a": NaN}x', "[" * 100_000, "{'a': 1}", '"abc', "\x00"])
def test_what_is_no_json_is_told_where_it_breaks(text):
    with pytest.raises(Unreadable, match=r"^\d+:\d+: (this is not valid JSON|values are nested deeper)"):
        read(text, "json")


def test_nesting_is_counted_not_followed():
    inner = "[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1)
    with pytest.raises(Unreadable, match=f"nested deeper than {MAX_DEPTH}"):
        read(inner, "json")


def test_json_may_hold_tabs_slashes_and_characters_beyond_the_first_plane():
    root, faults = read('{\t"a\\/b":\t"\\ud83d\\ude00 \\u00e9 \\n",\r\n\t"c": {"d": []}}', "json")
    assert faults == []
    assert root.entries["a/b"][1].text == "😀 é \n"
    assert root.entries["c"][1].line == 2


def test_a_file_that_is_not_utf_8_is_told_where():
    with pytest.raises(Unreadable, match=r"2:4: byte 0xe9 is not UTF-8"):
        decoded(b"a: 1\nb: \xe9")
    assert decoded(b"\xef\xbb\xbfa") == "a"


def test_a_file_that_is_too_large_is_not_read(monkeypatch):
    monkeypatch.setattr("scheduler.imports.documents.MAX_BYTES", 10)
    with pytest.raises(Unreadable, match="the file has 11 bytes"):
        decoded(b"x" * 11)


def test_a_cell_over_several_lines_does_not_shift_what_follows():
    root, faults = read('cluster,name,labels\nsouth,n1,"a=1;\nb=2"\nsouth,n2,"say ""hi"", x=1",9\n', "csv")
    assert faults == [Fault(4, 28, "", "a value beyond the last column; the header names 3")]
    assert [row.line for row in root.items] == [2, 4]


TREES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["name", "gpus", "mig", "path", "levels", "nodes"]), inner, max_size=3)
    ),
    max_leaves=12,
)


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(text=st.text(max_size=60) | TREES.map(repr), form=st.sampled_from(["yaml", "json", "csv"]))
def test_no_text_whatever_breaks_the_reader(text, form):
    try:
        root, faults = read(text, form)
    except Unreadable as fault:
        assert fault.faults
        return
    document = read_document(tree_of(root, faults) if form == "csv" else root, faults)
    assert all(fault.line >= 1 and fault.column >= 1 for fault in document.faults)
