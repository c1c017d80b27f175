"""What tests of Prometheus servers share: a node whose GPUs are known by UUID, and what exporters say of it."""

import ipaddress

import numpy as np

from dashboards.models import TelemetryFrame
from dashboards.prometheus.dcgm import FIELDS
from scheduler.models import Gpu, Node
from scheduler.notify.outgoing import Rules
from tests import builders
from tests.prometheus import Sample

LOCAL = Rules((ipaddress.ip_network("127.0.0.0/8"),), http=True)


def fleet(gpus: int = 4) -> Node:
    node = builders.node(gpus=gpus)
    for gpu in Gpu.objects.filter(node=node):
        Gpu.objects.filter(pk=gpu.pk).update(uuid=f"GPU-{gpu.index}")
    return node


def said(gpu: int, **values: str) -> list[Sample]:
    """Samples of one GPU by field key, with the labels of the exporter."""
    metrics = {one.key: one.metric for one in FIELDS}
    labels = {"gpu": str(gpu), "UUID": f"GPU-{gpu}", "device": f"nvidia{gpu}", "modelName": "NVIDIA H100 80GB HBM3", "Hostname": "n1"}
    return [(metrics[key], labels, value) for key, value in values.items()]


def nics(node: Node, *, rx: int, symbols: int) -> list[Sample]:
    """As the node exporter tells of adapters; bridges and the loopback say nothing of the hardware."""
    host = {"instance": f"{node.name}.example.org:9100"}
    return [
        ("node_network_receive_errs_total", host | {"device": "eth0"}, str(rx)),
        ("node_network_transmit_errs_total", host | {"device": "veth12"}, str(1000 * rx)),
        ("node_infiniband_port_errors_received_total", host | {"device": "mlx5_0", "port": "1"}, str(symbols)),
    ]


def ports(node: Node, *, gbps: dict[str, float], down: tuple[str, ...] = (), again: float = 0, sent: float = 0) -> list[Sample]:
    """As the node exporter tells of links and of TCP; a port that is down has no speed, or a negative one."""
    host = {"instance": f"{node.name}:9100"}
    found = [("node_netstat_Tcp_RetransSegs", host, str(again)), ("node_netstat_Tcp_OutSegs", host, str(sent))]
    for name, speed in gbps.items():
        infiniband = name.startswith("mlx5")
        metric = "node_infiniband_rate_bytes_per_second" if infiniband else "node_network_speed_bytes"
        found.append((metric, host | {"device": name} | ({"port": "1"} if infiniband else {}), str(round(speed * 1e9 / 8))))
    return [*found, *(("node_network_up", host | {"device": name}, str(int(name not in down))) for name in (*gbps, *down))]


def frame() -> dict[int, int]:
    row = TelemetryFrame.objects.get()
    keys = np.frombuffer(bytes(row.gpu_ids), "<u4").tolist()
    index = dict(Gpu.objects.values_list("pk", "index"))
    return {index[key]: percent for key, percent in zip(keys, bytes(row.sm_active), strict=True)}
