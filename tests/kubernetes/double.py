"""A double of Kubernetes' API server, and of its scheduler: as much of both as the back-end uses, in memory and over HTTP.

The same tests run against the real ones (`real.py`), which is what holds this to the truth.
"""

import copy
import json
import threading
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from time import sleep
from typing import Any
from urllib.parse import parse_qs, urlsplit

KINDS = {
    "pods": "Pod", "services": "Service", "secrets": "Secret", "nodes": "Node", "namespaces": "Namespace", "serviceaccounts": "ServiceAccount",
    "persistentvolumeclaims": "PersistentVolumeClaim", "events": "Event",
}  # fmt: skip
EVENTS_KEPT = 2_000
MAY_CHANGE = {"schedulingGates", "activeDeadlineSeconds", "nodeName"}
Key = tuple[str, str, str]  # kind, namespace, name


class Answer(Exception):
    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.code, self.reason = code, reason


class Double:
    """`denied`: what an account may not do, as (verb, resource). `admits` may refuse a pod. `silent`: it takes connections and answers nothing."""

    def __init__(self) -> None:
        self.lock = threading.Condition()
        self.objects: dict[Key, dict[str, Any]] = {}
        self.events: list[tuple[int, str, str, str, dict[str, Any]]] = []  # version, kind, namespace, type, object
        self.version, self.compacted = 100, 0
        self.denied: set[tuple[str, str]] = set()
        self.token = ""
        self.admits: Callable[[dict[str, Any]], str] = lambda pod: ""
        self.silent = False
        self.calls: list[str] = []
        self.logs: Callable[[str, dict[str, list[str]]], bytes | None] = lambda pod, query: b""
        self.namespace("default")
        self.namespace("gpufleet")
        self._over = threading.Event()
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"double": self}))
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        threading.Thread(target=self._schedule, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}"

    def stop(self) -> None:
        self._over.set()
        self.server.shutdown()
        self.server.server_close()

    def namespace(self, name: str) -> None:
        self.put("namespaces", {"metadata": {"name": name}})

    def forget_events(self) -> None:
        """Whoever watches from an older version has to list anew, and those that watch now are cut off."""
        with self.lock:
            self.version += 1
            self.compacted = self.version
            self.events = []
            self.lock.notify_all()

    def put(self, kind: str, body: dict[str, Any], namespace: str = "") -> dict[str, Any]:
        with self.lock:
            meta = body.setdefault("metadata", {})
            key = (kind, namespace, str(meta.get("name")))
            if key in self.objects:
                raise Answer(409, "AlreadyExists", f'{kind} "{key[2]}" already exists')
            meta |= {"uid": str(uuid.uuid4()), "creationTimestamp": stamp(), "generation": 1}
            if namespace:
                meta["namespace"] = namespace
            body.setdefault("apiVersion", "v1")
            body.setdefault("kind", KINDS[kind])
            if kind == "pods":
                body.setdefault("status", {"phase": "Pending", "qosClass": "BestEffort"})
                if body["spec"].get("schedulingGates"):
                    gated = {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}
                    body["status"]["conditions"] = [gated]
            self._changed(key, body, "ADDED")
            return copy.deepcopy(body)

    def change(self, key: Key, patch: dict[str, Any]) -> dict[str, Any]:
        with self.lock:
            there = self._there(key)
            wanted = (patch.get("metadata") or {}).get("uid")
            if wanted and wanted != there["metadata"]["uid"]:
                raise Answer(409, "Conflict", "the UID in the precondition does not match")
            fresh = merged(copy.deepcopy(there), patch)
            if key[0] == "pods":
                before, after = there["spec"], fresh["spec"]
                if {name for name in before | after if before.get(name) != after.get(name)} - {
                    "schedulingGates",
                    "activeDeadlineSeconds",
                    "nodeName",
                }:
                    raise Answer(422, "Invalid", "pod updates may not change fields other than a few")
            self._changed(key, fresh, "MODIFIED")
            return copy.deepcopy(fresh)

    def remove(self, key: Key, grace: int | None, uid: str) -> dict[str, Any]:
        with self.lock:
            there = self._there(key)
            if uid and uid != there["metadata"]["uid"]:
                raise Answer(409, "Conflict", "the UID in the precondition does not match")
            phase = there.get("status", {}).get("phase")
            waits = key[0] == "pods" and there["spec"].get("nodeName") and phase not in ("Succeeded", "Failed") and grace != 0
            if not waits:
                self._changed(key, there, "DELETED")
                return there
            seconds = there["spec"].get("terminationGracePeriodSeconds", 30) if grace is None else grace
            meta = there["metadata"]
            if "deletionTimestamp" not in meta or seconds < meta["deletionGracePeriodSeconds"]:
                fresh = copy.deepcopy(there)
                fresh["metadata"] |= {"deletionTimestamp": stamp(seconds), "deletionGracePeriodSeconds": seconds}
                self._changed(key, fresh, "MODIFIED")
                return fresh
            return there

    def _there(self, key: Key) -> dict[str, Any]:
        if key not in self.objects:
            raise Answer(404, "NotFound", f'{key[0]} "{key[2]}" not found')
        return self.objects[key]

    def _changed(self, key: Key, body: dict[str, Any], kind: str) -> None:
        self.version += 1
        body["metadata"]["resourceVersion"] = str(self.version)
        if kind == "DELETED":
            self.objects.pop(key, None)
        else:
            self.objects[key] = body
        self.events.append((self.version, key[0], key[1], kind, copy.deepcopy(body)))
        if len(self.events) > EVENTS_KEPT:
            self.compacted = self.events[-EVENTS_KEPT][0]
            self.events = self.events[-EVENTS_KEPT:]
        self.lock.notify_all()

    def listed(self, kind: str, namespace: str, selector: str) -> list[dict[str, Any]]:
        with self.lock:
            found = [one for (what, where, _), one in sorted(self.objects.items()) if what == kind and (not namespace or where == namespace)]
            return [copy.deepcopy(one) for one in found if matches(one, selector)]

    def watched(self, kind: str, namespace: str, selector: str, version: int, seconds: float) -> Iterator[dict[str, Any] | None]:
        until = datetime.now(UTC) + timedelta(seconds=seconds)
        if version < self.compacted:
            yield {"type": "ERROR", "object": {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"}}
            return
        while datetime.now(UTC) < until and not self._over.is_set():
            with self.lock:
                if version < self.compacted:
                    return
                fresh = [event for event in self.events if event[0] > version]
                if not fresh:
                    self.lock.wait(0.2)
            for number, what, where, type_, body in fresh:
                version = number
                if what == kind and (not namespace or where == namespace) and matches(body, selector):
                    yield {"type": type_, "object": body}
            if not fresh:
                yield None

    def _schedule(self) -> None:
        """Pods without a gate are bound to the node that they name, if it has room for them."""
        while not self._over.is_set():
            with self.lock:
                for key, pod in [(key, pod) for key, pod in self.objects.items() if key[0] == "pods"]:
                    if not pod["spec"].get("nodeName") and not pod["spec"].get("schedulingGates") and "deletionTimestamp" not in pod["metadata"]:
                        self._place(key, pod)
            sleep(0.03)

    def _place(self, key: Key, pod: dict[str, Any]) -> None:
        terms = pod["spec"].get("affinity", {}).get("nodeAffinity", {}).get("requiredDuringSchedulingIgnoredDuringExecution", {})
        names = [name for term in terms.get("nodeSelectorTerms", ()) for field in term.get("matchFields", ()) for name in field["values"]]
        fault = "0/1 nodes are available: node(s) didn't match Pod's node affinity/selector."
        for name in names:
            node = self.objects.get(("nodes", "", name))
            if node is None:
                continue
            fault = self._why_not(node, pod)
            if not fault:
                bound = {"type": "PodScheduled", "status": "True", "lastTransitionTime": stamp()}
                self._changed(key, merged(copy.deepcopy(pod), {"spec": {"nodeName": name}, "status": {"conditions": [bound]}}), "MODIFIED")
                return
        stuck = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": fault}
        if pod["status"].get("conditions") != [stuck]:
            self._changed(key, merged(copy.deepcopy(pod), {"status": {"conditions": [stuck]}}), "MODIFIED")

    def _why_not(self, node: dict[str, Any], pod: dict[str, Any]) -> str:
        tolerated = {one.get("key") for one in pod["spec"].get("tolerations", ())}
        for taint in node.get("spec", {}).get("taints", ()):
            if taint["key"] not in tolerated and taint["effect"] != "PreferNoSchedule":
                return f"0/1 nodes are available: 1 node(s) had untolerated taint(s) {{{taint['key']}: }}."
        if node.get("spec", {}).get("unschedulable"):
            return "0/1 nodes are available: 1 node(s) were unschedulable."
        there = node.get("status", {}).get("allocatable", {})
        held: dict[str, float] = {}
        for other in self.objects.values():
            is_there = other.get("kind") == "Pod" and other["spec"].get("nodeName") == node["metadata"]["name"]
            if is_there and other.get("status", {}).get("phase") not in ("Succeeded", "Failed"):
                for name, amount in requests_of(other).items():
                    held[name] = held.get(name, 0) + amount
        for name, amount in requests_of(pod).items():
            if held.get(name, 0) + amount > number(there.get(name, 0)):
                return f"0/1 nodes are available: 1 Insufficient {name}."
        return ""


class _Handler(BaseHTTPRequestHandler):
    double: Double
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_: Any) -> None:
        return None

    def do_GET(self) -> None:
        self._serve("GET")

    do_POST = do_PATCH = do_DELETE = lambda self: self._serve(self.command)

    def _serve(self, method: str) -> None:
        size = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(size)) if size else {}
        while self.double.silent:
            sleep(0.05)
        parts = urlsplit(self.path)
        query = parse_qs(parts.query)
        self.double.calls.append(f"{method} {parts.path}")
        try:
            if self.double.token and self.headers.get("Authorization") != f"Bearer {self.double.token}":
                raise Answer(401, "Unauthorized", "Unauthorized")
            self._answer(method, parts.path, query, body)
        except Answer as fault:
            said = {"kind": "Status", "status": "Failure", "code": fault.code, "reason": fault.reason, "message": str(fault)}
            self._send(fault.code, said)
        except (BrokenPipeError, ConnectionResetError):
            pass

    def _answer(self, method: str, path: str, query: dict[str, list[str]], body: dict[str, Any]) -> None:
        double = self.double
        if path == "/version":
            self._send(200, {"major": "1", "minor": "36", "gitVersion": "v1.36.2"})
            return
        if path.endswith("/selfsubjectaccessreviews"):
            asked = body["spec"]["resourceAttributes"]
            what = asked["resource"] + (f"/{asked['subresource']}" if asked.get("subresource") else "")
            self._send(201, {**body, "status": {"allowed": (asked["verb"], what) not in double.denied}})
            return
        if path.endswith("/selfsubjectreviews"):
            self._send(201, {**body, "status": {"userInfo": {"username": "console"}}})
            return
        words = path.removeprefix("/api/v1/").split("/")
        namespace = ""
        if words[0] == "namespaces" and len(words) > 2:
            namespace, words = words[1], words[2:]
        kind, name, part = (*words, "", "")[:3]
        if kind not in KINDS:
            raise Answer(404, "NotFound", "the server could not find the requested resource")
        is_watch = query.get("watch") == ["true"]
        verb = {"POST": "create", "PATCH": "patch", "DELETE": "delete"}.get(method, "watch" if is_watch else "get" if name else "list")
        if (verb, kind + (f"/{part}" if part == "log" else "")) in double.denied:
            message = f'{kind} is forbidden: User "console" cannot {verb} resource "{kind}" in API group "" in the namespace "{namespace}"'
            raise Answer(403, "Forbidden", message)
        selector = query.get("labelSelector", [""])[0]
        if part == "log":
            said = double.logs(name, query)
            if said is None:
                raise Answer(400, "BadRequest", f'container "worker" in pod "{name}" is waiting to start: ContainerCreating')
            double._there((kind, namespace, name))
            self._send(200, said)
        elif is_watch:
            self._watch(double.watched(kind, namespace, selector, int(query["resourceVersion"][0]), float(query["timeoutSeconds"][0])))
        elif method == "POST":
            self._create(kind, namespace, query, body)
        elif method == "PATCH":
            self._send(200, double.change((kind, namespace, name), body))
        elif method == "DELETE":
            uid = (body.get("preconditions") or {}).get("uid", "")
            self._send(200, double.remove((kind, namespace, name), body.get("gracePeriodSeconds"), uid))
        elif name:
            with double.lock:
                found = copy.deepcopy(double._there((kind, namespace, name)))
            self._send(200, found)
        else:
            self._list(kind, namespace, selector, query)

    def _create(self, kind: str, namespace: str, query: dict[str, list[str]], body: dict[str, Any]) -> None:
        double = self.double
        if namespace and ("namespaces", "", namespace) not in double.objects:
            raise Answer(404, "NotFound", f'namespaces "{namespace}" not found')
        if kind == "pods":
            if fault := double.admits(body):
                raise Answer(403, "Forbidden", f'pods "{body["metadata"]["name"]}" is forbidden: {fault}')
            if any(one["image"] != one["image"].strip() for one in body["spec"]["containers"]):
                raise Answer(422, "Invalid", "spec.containers[0].image: must not have leading or trailing whitespace")
        if query.get("dryRun"):
            self._send(201, body)
            return
        self._send(201, double.put(kind, body, namespace))

    def _list(self, kind: str, namespace: str, selector: str, query: dict[str, list[str]]) -> None:
        with self.double.lock:
            found, version = self.double.listed(kind, namespace, selector), self.double.version
        first, limit = int(query.get("continue", ["0"])[0]), int(query.get("limit", ["1000000"])[0])
        meta = {"resourceVersion": str(version), **({"continue": str(first + limit)} if first + limit < len(found) else {})}
        self._send(200, {"kind": f"{KINDS[kind]}List", "metadata": meta, "items": found[first : first + limit]})

    def _watch(self, events: Iterator[dict[str, Any] | None]) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for event in events:
            line = json.dumps(event).encode() + b"\n" if event is not None else b"\n"
            self.wfile.write(f"{len(line):x}\r\n".encode() + line + b"\r\n")
            self.wfile.flush()
        self.wfile.write(b"0\r\n\r\n")

    def _send(self, code: int, body: dict[str, Any] | bytes) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def stamp(later: float = 0) -> str:
    return f"{datetime.now(UTC) + timedelta(seconds=later):%Y-%m-%dT%H:%M:%SZ}"


def merged(there: Any, patch: Any) -> Any:
    if not isinstance(patch, dict):
        return patch
    found = there if isinstance(there, dict) else {}
    for name, value in patch.items():
        if value is None:
            found.pop(name, None)
        else:
            found[name] = merged(found.get(name), value)
    return found


def matches(one: dict[str, Any], selector: str) -> bool:
    labels = one["metadata"].get("labels") or {}
    for word in filter(None, selector.split(",")):
        key, sign, value = word.partition("=")
        if key.startswith("!"):
            if key[1:] in labels:
                return False
        elif key.endswith("!"):
            if labels.get(key[:-1]) == value:
                return False
        elif (key not in labels) if not sign else labels.get(key) != value:
            return False
    return True


def requests_of(pod: dict[str, Any]) -> dict[str, float]:
    found: dict[str, float] = {}
    for container in pod["spec"]["containers"]:
        stated = container.get("resources", {})
        for name, value in {**stated.get("limits", {}), **stated.get("requests", {})}.items():
            found[name] = found.get(name, 0) + number(value)
    return found


def number(value: Any) -> float:
    text = str(value)
    for ending, times in (("Ki", 1024), ("Mi", 1024**2), ("Gi", 1024**3), ("m", 0.001)):
        if text.endswith(ending):
            return float(text.removesuffix(ending)) * times
    return float(text)
