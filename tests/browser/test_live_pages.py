"""Live pages in a real browser: what arrives when, what must stand still, and what happens when something is lost."""

import re
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import pytest
from django.urls import reverse
from playwright.sync_api import Browser, Page, Route, WebSocketRoute, expect

from dashboards.gap.store import gap_turn
from gpufleet.core.live.feed import feed_publish
from gpufleet.core.models import User
from gpufleet.core.times import now
from quotas.models import QuotaNode
from scheduler.models import Gpu, Health, JobState, Node
from tests import builders
from tests.browser.harness import COUNT_MUTATIONS, CUT_TABLES, TWO_FRAMES, LiveConsole, Visitor, listeners, wait_for, wait_until_followed
from tests.dashboards.worlds import gpus_of, readings
from tests.servers import wait_until

pytestmark = pytest.mark.browser
PASSWORD = "correct horse battery"


@pytest.fixture
def fleet(transactional_db: None) -> list[Gpu]:
    """Two racks of two nodes with four GPUs; the first GPU is held and works."""
    north = builders.cluster(levels=("spine", "leaf"))
    nodes = [builders.node(f"node-{number}", gpus=4, at=f"spine-1/leaf-{number // 2 + 1}", of=north) for number in range(4)]
    gpus = [gpu for node in nodes for gpu in gpus_of(node)]
    team = builders.quota("vision", parent=builders.quota("research", parent=builders.quota()), title="Vision")
    builders.placement(builders.job(state=JobState.RUNNING, on=team), on=gpus[0], since=now())
    readings({gpu: 80 if gpu == gpus[0] else 0 for gpu in gpus}, at=now())
    gap_turn(now=now() - timedelta(minutes=10))
    return gpus


@pytest.fixture
def visit(live_console: LiveConsole, browser: Browser, fleet: list[Gpu]) -> Iterator[Callable[[str], Visitor]]:
    User.objects.create_superuser("root", "root@example.org", PASSWORD)

    def open_page(path: str, **options: Any) -> Visitor:
        visitor = live_console.visit(browser, "root", password=PASSWORD, **options)
        visitor.open(path)
        expect(visitor.page.locator(".live-word")).to_have_text("Live")
        return visitor

    yield open_page


def hold(gpu: Gpu) -> None:
    builders.placement(on=Gpu.objects.select_related("node").get(pk=gpu.pk), since=now())
    feed_publish(changes={"gpus": [{"id": gpu.pk}]})


def fall_ill(node: Node, health: str = Health.DOWN) -> None:
    Node.objects.filter(pk=node.pk).update(health=health, health_since=now())
    feed_publish(changes={"nodes": [{"id": node.pk}]})


def read(percents: dict[Gpu, int | None]) -> None:
    readings(percents, at=now())
    feed_publish(changes={"telemetry": [{"id": gpu.node.cluster_id} for gpu in list(percents)[:1]]})


def figure(page: Page, name: str) -> Any:
    return page.locator(f'.headline [data-f="{name}"]')


def test_a_write_is_on_the_page_without_a_reload(visit, live_console, fleet):
    page = visit("/").page
    page.wait_for_selector(".plot-container")
    page.evaluate("window.sameDocument = true")
    for number in (1, 2, 3):
        live_console.do(hold, fleet[number])
        expect(figure(page, "held_note")).to_have_text(f"{number + 1} of 16 GPUs")
    assert page.evaluate("window.sameDocument") is True


def test_the_longest_waits_follow_jobs_without_the_rest_of_the_page(visit, live_console, fleet):
    def wait(name: str, hours: int) -> None:
        job = builders.job(name, state_since=now() - timedelta(hours=hours))
        feed_publish(changes={"jobs": [{"id": job.pk}]})

    wait("first", 2)
    page = visit("/").page
    wait_until_followed(page, "jobs")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(urlsplit(request.url).path))

    live_console.do(wait, "longer", 5)

    expect(page.get_by_role("region", name="Longest waits").locator("tbody th a")).to_have_text(["longer", "first"])
    assert reverse("home_waits") in asked
    assert not {"/", reverse("overview")} & {*asked}


def test_what_is_unfolded_stays_so_when_a_job_comes(visit, live_console, fleet):
    crowded = builders.node("crowded", gpus=11, of=fleet[0].node.cluster)
    *held, free = gpus_of(crowded)
    for gpu in held:
        builders.placement(builders.job(state=JobState.RUNNING), on=gpu, since=now())
    page = visit(reverse("node", args=[crowded.public_id])).page
    page.get_by_text("Show 2 more", exact=True).click()
    more = page.get_by_role("region", name="More jobs here").locator("tbody tr")
    expect(more).to_have_count(2)
    page.get_by_role("heading", level=1).click()
    live_console.do(hold, free)
    expect(page.get_by_text("Show 3 more", exact=True)).to_be_visible()
    expect(more.nth(2)).to_be_visible()


def test_charts_come_in_a_browser_that_is_never_idle(visit):
    """One that draws no frame for a while calls itself busy for as long: charts came up to a minute later."""
    visitor = visit("/")
    visitor.page.add_init_script("window.requestIdleCallback = (call, options) => options?.timeout && setTimeout(call, options.timeout);")
    visitor.open("/")

    expect(visitor.page.locator(".plot-container").first).to_be_visible()


def test_script_and_server_write_the_same_texts(visit, live_console, fleet):
    live_console.do(fall_ill, fleet[4].node, Health.SUSPECT)
    builders.job(submitted_at=now(), gpus_milli=2500)
    page = visit("/").page
    page.wait_for_selector(".plot-container")
    page.evaluate("document.querySelectorAll('time').forEach(time => time.remove())")  # ages go on by themselves
    lists = ".headline, [data-rows=sick], [data-rows=holders], [data-rows=types]"
    written = page.locator(lists).all_inner_texts()
    page.evaluate("document.querySelectorAll('[data-f]').forEach(one => { one.textContent = '?' })")

    live_console.do(feed_publish, changes={"overview": [{"id": 1}]})
    expect(figure(page, "held")).to_have_text("6%")
    page.evaluate("document.querySelectorAll('time').forEach(time => time.remove())")

    assert page.locator(lists).all_inner_texts() == written


def test_pause_stops_every_change_and_resuming_catches_up_once(visit, live_console, fleet):
    page = visit("/").page
    page.wait_for_selector(".plot-container")
    page.get_by_role("button", name="Pause live updates").click()
    expect(page.locator(".live-word")).to_have_text("Paused")
    page.evaluate(COUNT_MUTATIONS)
    for gpu in fleet[1:5]:
        live_console.do(hold, gpu)
    live_console.do(fall_ill, fleet[12].node)
    page.wait_for_timeout(2500)
    assert page.evaluate("window.mutations") == 0

    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.get_by_role("button", name="Pause live updates").click()

    expect(figure(page, "held_note")).to_have_text("5 of 16 GPUs")
    expect(page.locator("[data-rows=sick] tr")).to_have_count(1)
    assert len([url for url in asked if url.endswith("/snapshot")]) == 1


def test_a_hidden_tab_is_sent_nothing_and_catches_up_on_return(visit, live_console, fleet, browser):
    visitor = visit("/")
    page = visitor.page
    frames: list[str] = []
    page.on("websocket", lambda socket: socket.on("framereceived", lambda payload: frames.append(str(payload))))
    page.reload()
    # A heartbeat says "Live" as well, so the answer to the page's request to follow the topic may still be under way.
    wait_until(lambda: any('"overview","joined"' in frame for frame in seen(page, frames)), what="the page to have joined its topic")
    set_hidden(page, True)
    wait_until(lambda: all(listener.hidden for listener in listeners()), what="the server to know that the tab is hidden")
    page.evaluate("fetch('/healthz').then((answer) => answer.text())")  # behind it comes nothing that was sent before
    seen(page, frames).clear()
    for gpu in fleet[1:5]:
        live_console.do(hold, gpu)
    page.wait_for_timeout(2500)  # longer than two heartbeats
    assert frames == []

    set_hidden(page, False)

    expect(figure(page, "held_note")).to_have_text("5 of 16 GPUs")
    live_console.do(hold, fleet[5])
    expect(figure(page, "held_note")).to_have_text("6 of 16 GPUs")


def test_a_part_that_comes_late_does_not_wake_a_hidden_tab(visit, live_console, fleet):
    """The bell asks for its count before it follows its topic."""
    visitor = visit("/")
    page = visitor.page
    held_up: list[Route] = []
    said: list[str] = []
    page.on("websocket", lambda socket: socket.on("framesent", lambda payload: said.append(str(payload))))
    page.route(f"**{reverse('notices_unread')}", lambda route: held_up.append(route))
    page.reload()
    wait_until(lambda: any("overview" in listener.topics for listener in listeners()), what="the page to follow its topic")
    wait_for(page, lambda: held_up)
    set_hidden(page, True)
    wait_until(lambda: all(listener.hidden for listener in listeners()), what="the server to know that the tab is hidden")

    held_up[0].fulfill(json={"count": 7, "mark": "", "version": 0})
    expect(page.locator("[data-bell] .bell-count")).to_have_text("7")
    assert not [one for one in seen(page, said) if "bells" in one]
    assert all(listener.hidden for listener in listeners())

    set_hidden(page, False)
    wait_until(lambda: any({"overview", "bells"} <= listener.topics for listener in listeners()), what="the page to follow both again")


def test_a_tab_that_is_hidden_while_it_connects_is_sent_nothing(visit, live_console, fleet):
    visitor = visit("/")
    page = visitor.page
    frames: list[str] = []
    page.on("websocket", lambda socket: socket.on("framereceived", lambda payload: frames.append(str(payload))))
    page.add_init_script(HIDDEN_AS_IT_CONNECTS)
    page.reload()

    wait_until(lambda: listeners() and all(listener.hidden for listener in listeners()), what="the server to know that the tab is hidden")
    live_console.do(hold, fleet[1])
    assert not [frame for frame in seen(page, frames) if '"topic"' in frame]
    set_hidden(page, False)
    wait_until(lambda: any("overview" in listener.topics for listener in listeners()), what="the page to follow its topic")


def seen(page: Page, frames: list[str]) -> list[str]:
    """Every frame that the browser has taken in so far: they are told in order, but only while something is asked of the page."""
    page.evaluate("0")
    return frames


HIDDEN_AS_IT_CONNECTS = """
    window.WebSocket = class extends WebSocket {
        constructor(...address) {
            super(...address);
            Object.defineProperty(document, "hidden", {configurable: true, get: () => true});
            document.dispatchEvent(new Event("visibilitychange"));
        }
    };
"""


def set_hidden(page: Page, hidden: bool) -> None:
    page.evaluate(
        """hidden => {
            Object.defineProperty(document, "hidden", {configurable: true, get: () => hidden});
            document.dispatchEvent(new Event("visibilitychange"));
        }""",
        hidden,
    )


def relayed(visitor: Visitor, keep: Callable[[str], bool]) -> list[str]:
    """Puts us between page and server: what `keep` says no to is lost. Returns what was lost, as it grows."""
    lost: list[str] = []

    def relay(socket: WebSocketRoute) -> None:
        server = socket.connect_to_server()

        def down(message: str | bytes) -> None:
            if keep(str(message)):
                socket.send(message)
            else:
                lost.append(str(message))

        server.on_message(down)

    visitor.page.route_web_socket(re.compile("/ws/live/"), relay)
    return lost


def test_a_lost_change_is_noticed_at_the_next_one_and_the_snapshot_heals_it(visit, live_console, fleet):
    visitor = visit("/")
    page = visitor.page
    losing = {"on": False}
    lost = relayed(visitor, lambda message: not (losing["on"] and '"rows"' in message))
    before = listeners()
    page.reload()
    wait_until_followed(page, "overview", gone=before)
    losing["on"] = True
    live_console.do(fall_ill, fleet[0].node)
    wait_for(page, lambda: lost)
    losing["on"] = False

    with page.expect_response("**/live/overview/snapshot"):
        live_console.do(hold, fleet[1])

    expect(figure(page, "held_note")).to_have_text("2 of 16 GPUs")
    expect(page.locator("[data-rows=sick] tr")).to_have_count(1)


def test_silence_is_said_and_ends_with_the_connection(visit, live_console, fleet):
    visitor = visit("/")
    page = visitor.page
    silent = {"on": False}
    relayed(visitor, lambda message: not silent["on"])
    page.clock.install()
    began = time.monotonic()
    page.reload()
    expect(page.locator(".live-word")).to_have_text("Live")
    silent["on"] = True

    page.clock.run_for(17_000)
    expect(page.locator("#stale")).to_contain_text(re.compile(r"The data is \d+ s old"))
    age = int(re.findall(r"is (\d+) s old", page.locator("#stale").inner_text())[0])
    assert 17 <= age <= 18 + time.monotonic() - began
    expect(page.locator(".live-word")).to_have_text("Stale")
    silent["on"] = False
    page.clock.run_for(30_000)

    expect(page.locator("#stale")).to_be_hidden()
    live_console.do(hold, fleet[1])
    page.clock.run_for(2_000)
    expect(figure(page, "held_note")).to_have_text("2 of 16 GPUs")


def test_pages_of_objects_follow_what_happens(visit, live_console, fleet):
    """Lists and pages of clusters, nodes, GPUs and quotas: what changes shows without a reload."""
    node, gpu = fleet[5].node, fleet[5]
    team = QuotaNode.objects.get(path__endswith="vision")
    pages = {
        "/nodes/": f"#table-nodes [data-key={node.public_id}]",
        f"/nodes/{node.public_id}/": "[data-part=sub]",
        "/gpus/": f"#table-gpus [data-key={gpu.public_id}]",
        f"/gpus/{gpu.public_id}/": "[data-part=holders]",
        "/clusters/": "#table-clusters tbody",
        "/clusters/north/": "[data-part=figures]",
        "/quotas/": "[data-part=rows]",
        f"/quotas/{team.public_id}/": "[data-part=shares]",
    }
    shown = {address: visit(address).page for address in pages}
    before = {address: shown[address].locator(place).inner_text() for address, place in pages.items()}

    live_console.do(hold, gpu)
    live_console.do(fall_ill, node)
    live_console.do(more_jobs_of, team, fleet[2])

    for address, place in pages.items():
        expect(shown[address].locator(place), address).not_to_have_text(before[address], use_inner_text=True, timeout=10_000)


def more_jobs_of(team: QuotaNode, gpu: Gpu) -> None:
    job = builders.job(state=JobState.RUNNING, on=team)
    builders.placement(job, on=Gpu.objects.select_related("node").get(pk=gpu.pk), since=now())
    feed_publish(changes={"gpus": [{"id": gpu.pk}], "jobs": [{"id": job.pk}]})


def test_a_dead_socket_is_said_within_two_seconds(visit, live_console, fleet):
    """One that is closed, and one that is open and says nothing."""
    visitor = visit("/")
    page, sockets, silent = visitor.page, [], {"on": False}

    def relay(route: WebSocketRoute) -> None:
        sockets.append(route)
        server = route.connect_to_server()
        server.on_message(lambda message: None if silent["on"] else route.send(message))

    page.route_web_socket(re.compile("/ws/live/"), relay)
    page.reload()
    word = page.locator(".live-word")
    expect(word).to_have_text("Live")

    silent["on"] = True
    expect(word).to_have_text("Reconnecting", timeout=2_500)  # of them at most half a second until the test looks
    silent["on"] = False
    expect(word).to_have_text("Live")

    page.route_web_socket(re.compile("/ws/live/"), lambda route: route.close())
    sockets[-1].close()
    expect(word).to_have_text("Reconnecting", timeout=2_000)


def test_a_session_that_ends_says_so_and_leads_to_the_sign_in_page(visit, live_console, fleet):
    page = visit("/").page

    def expel() -> None:
        User.objects.filter(username="root").update(is_active=False)
        feed_publish(changes={"roles": [{"id": 1}]})

    live_console.do(expel)

    expect(page.locator("#stale")).to_contain_text("Your session has ended. Sign in again")


def test_rows_wait_while_the_pointer_is_in_their_table(visit, live_console, fleet):
    live_console.do(fall_ill, fleet[4].node, Health.SUSPECT)
    page = visit("/").page
    rows = page.locator("[data-rows=sick] tr")
    rows.first.hover(position={"x": 200, "y": 40})  # a panel above grows by a row meanwhile, and the table moves down by less

    live_console.do(fall_ill, fleet[8].node)
    live_console.do(hold, fleet[8])
    live_console.do(hold, fleet[4])
    apply = page.get_by_role("button", name="change")
    expect(apply).to_be_visible()
    expect(rows).to_have_count(1)
    expect(rows.first.locator('[data-f="jobs"]')).to_have_text("1")  # what stands there is kept true
    apply.press("Enter")  # by keyboard: on its way there a mouse leaves the table, and then they come by themselves

    expect(rows).to_have_count(2)
    expect(apply).to_be_hidden()


def test_rows_that_waited_come_when_the_pointer_leaves(visit, live_console, fleet):
    live_console.do(fall_ill, fleet[4].node, Health.SUSPECT)
    page = visit("/").page
    rows = page.locator("[data-rows=sick] tr")
    rows.first.hover()
    live_console.do(fall_ill, fleet[8].node)
    expect(page.get_by_role("button", name="change")).to_be_visible()

    page.mouse.move(5, 5)

    expect(rows).to_have_count(2)


def test_a_parked_pointer_holds_what_stands_above_it_for_a_minute_and_no_empty_panel(visit, live_console, fleet):
    page = visit("/").page
    page.clock.install()
    page.reload()
    expect(page.locator(".live-word")).to_have_text("Live")
    rows = page.locator("[data-rows=sick] tr")
    below = page.locator(".stack > :has([data-rows=sick]) ~ *").last
    below.hover()

    live_console.do(fall_ill, fleet[4].node)
    expect(rows).to_have_count(1)  # instead of its note: a head without rows would say nothing
    below.hover()
    live_console.do(fall_ill, fleet[8].node)
    expect(page.get_by_role("button", name="change")).to_be_visible()
    expect(rows).to_have_count(1)
    page.clock.run_for(61_000)
    expect(rows).to_have_count(2)


def test_times_that_a_change_brings_follow_the_clock_of_the_person(visit, live_console, fleet):
    page = visit("/", timezone_id="Asia/Tokyo").page
    live_console.do(fall_ill, fleet[4].node, Health.SUSPECT)
    fresh = page.locator("[data-rows=sick] time")

    expect(fresh).to_have_attribute("title", re.compile(r"GMT\+9$"))
    page.get_by_role("button", name="Times in UTC").click()
    expect(fresh).to_have_attribute("title", re.compile(r"UTC$"))
    page.locator(".twin summary").click()
    expect(page.locator("[data-plot-table] tbody th").first).to_contain_text("UTC")


def test_who_holds_idle_gpus_leads_to_them_on_the_map(visit, live_console, fleet):
    page = visit("/").page
    live_console.do(read, {fleet[0]: 1, **dict.fromkeys(fleet[1:], 0)})

    page.locator("[data-rows=holders]").get_by_role("link", name="Vision").click()

    expect(page.locator("[data-count]")).to_have_text("1 of 16 GPUs matches")


@pytest.mark.parametrize(
    ("path", "theme"),
    [
        ("/", "dark"),
        ("/fleet/", "light"),
        pytest.param("/fleet/?view=table", "dark", marks=pytest.mark.soak),
        pytest.param("/fleet/?colour=health&group=0", "dark", marks=pytest.mark.soak),
    ],
)
def test_pages_are_clean_with_everything_on_them(visit, live_console, fleet, path, theme):
    visitor = visit(path, theme=theme) if "table" not in path else visit("/", theme=theme)
    if "table" in path:
        visitor.open(path)
    if path == "/":
        visitor.page.wait_for_selector(".plot-container")
        visitor.page.mouse.move(500, 500)
    live_console.do(fall_ill, fleet[4].node)
    live_console.do(read, dict.fromkeys(fleet, 50))
    visitor.page.wait_for_timeout(800)

    assert visitor.watch.faults == []
    assert visitor.axe() == []


# ---- The fleet map ----


def spoken(page: Page) -> Any:
    return page.locator("#map-cell")


def test_the_map_is_walked_by_keyboard_and_speaks(visit, fleet):
    page = visit("/fleet/").page
    page.locator(".map-grid").focus()
    page.keyboard.press("Home")
    expect(spoken(page)).to_have_text("node-0 GPU 0, H100-SXM-80GB, team Vision, 80% SM, healthy, north / spine-1 / leaf-1")
    for key, cell in (
        ("ArrowRight", "node-0 GPU 1"),
        ("ArrowDown", "node-1 GPU 1"),
        ("End", "node-1 GPU 3"),
        ("PageDown", "node-2 GPU 0"),
        ("ArrowLeft", "node-0 GPU 3"),
        ("Control+End", "node-3 GPU 3"),
        ("Control+Home", "node-0 GPU 0"),
        ("ArrowUp", "node-0 GPU 0"),
    ):
        page.keyboard.press(key)
        expect(spoken(page)).to_contain_text(cell + ",")
    expect(page.locator(".map-tip")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator(".map-tip")).to_be_hidden()

    page.keyboard.press("Enter")

    page.wait_for_url(f"**/gpus/{fleet[0].public_id}/")


def test_the_map_that_had_the_focus_before_it_was_loaded_is_walked_all_the_same(visit, fleet):
    visitor, held = visit("/"), []
    page = visitor.page
    page.route("**" + reverse("live-snapshot", args=["gpus"]), lambda route: held.append(route))
    with page.expect_request("**" + reverse("live-snapshot", args=["gpus"])):
        page.goto(visitor.origin + "/fleet/", wait_until="commit")
    page.locator(".map-grid").focus()
    page.keyboard.press("Home")
    expect(spoken(page)).to_have_text("Loading the map")

    held[0].continue_()

    expect(spoken(page)).to_contain_text("node-0 GPU 0,")
    page.keyboard.press("ArrowRight")
    expect(spoken(page)).to_contain_text("node-0 GPU 1,")


def test_the_map_follows_readings_holders_and_health(visit, live_console, fleet):
    page = visit("/fleet/").page
    page.locator(".map-grid").focus()
    page.keyboard.press("Home")

    live_console.do(read, dict.fromkeys(fleet, 33))
    expect(spoken(page)).to_contain_text("33% SM")
    live_console.do(fall_ill, fleet[0].node, Health.DRAINING)
    expect(spoken(page)).to_contain_text("draining")
    page.keyboard.press("ArrowRight")
    expect(spoken(page)).to_contain_text("free")
    live_console.do(hold, fleet[1])
    expect(spoken(page)).to_contain_text("acme")


def test_a_gpu_that_comes_is_drawn(visit, live_console, fleet):
    page = visit("/fleet/").page
    expect(page.locator("[data-count]")).to_have_text("16 GPUs")

    def arrive() -> None:
        node = builders.node("node-new", gpus=4, of=fleet[0].node.cluster)
        feed_publish(changes={"nodes": [{"id": node.pk}], "gpus": [{"id": gpu.pk} for gpu in gpus_of(node)]})

    live_console.do(arrive)

    expect(page.locator("[data-count]")).to_have_text("20 GPUs")


def test_filters_live_in_the_address(visit, fleet):
    page = visit("/fleet/").page
    page.get_by_label("Node, rack or pool").fill("leaf-2")
    expect(page.locator("[data-count]")).to_have_text("8 of 16 GPUs match")
    page.locator("select[name=team]").select_option("free")
    expect(page.locator("[data-count]")).to_have_text("8 of 16 GPUs match")
    page.get_by_role("radio", name="Allocation").check()

    page.reload()

    expect(page.locator("[data-count]")).to_have_text("8 of 16 GPUs match")
    assert page.locator('[name="colour"]:checked').get_attribute("value") == "held"
    assert "q=leaf-2" in page.url


def test_old_readings_are_hatched_and_not_believed(visit, live_console, fleet):
    live_console.do(readings, dict.fromkeys(fleet, 70), at=now() - timedelta(minutes=10))
    page = visit("/fleet/").page
    page.locator(".map-grid").focus()
    page.keyboard.press("Home")

    expect(spoken(page)).to_contain_text("no reading")


def test_pause_holds_the_map_still(visit, live_console, fleet):
    page = visit("/fleet/").page
    page.locator(".map-grid").focus()
    page.keyboard.press("Home")
    page.get_by_role("button", name="Pause live updates").click()
    page.locator(".map-grid").focus()
    page.evaluate(TWO_FRAMES)  # what is drawn is drawn with the next one
    picture = page.locator(".rack canvas").first.screenshot()
    page.evaluate(COUNT_MUTATIONS)

    live_console.do(read, dict.fromkeys(fleet, 99))
    live_console.do(fall_ill, fleet[0].node)
    page.wait_for_timeout(2500)

    assert page.evaluate("window.mutations") == 0
    assert page.locator(".rack canvas").first.screenshot() == picture


def test_cells_are_as_large_as_the_room_allows(visit, fleet):
    page = visit("/fleet/").page
    rack = page.locator(".rack canvas").first

    expect(page.locator(".rack")).to_have_count(2)
    largest = rack.bounding_box()["width"]
    assert largest >= 4 * 32, "four GPUs of the largest cells"
    expect(page.get_by_role("button", name="Larger cells")).to_be_disabled()
    expect(page.locator(".rack-head").first).to_have_text(re.compile(r"leaf-1\s*node-…"))

    page.get_by_role("button", name="Smaller cells").click()
    assert rack.bounding_box()["width"] < largest
    page.set_viewport_size({"width": 320, "height": 640})
    expect(rack).to_be_visible()
    page.wait_for_function("document.documentElement.scrollWidth <= 320")  # it is laid out anew when it sees its new size


def test_figures_of_the_overview_need_no_sideways_scrolling(visit, fleet):
    """With waits and sums as long as they get."""
    builders.job(submitted_at=now() - timedelta(hours=13, minutes=46), gpus_milli=110_000)
    visitor = visit("/", viewport={"width": 1280, "height": 900})
    cut = {}
    for width in (1280, 1344, 1400, 1920):
        visitor.see(theme="light", size={"width": width, "height": 900})
        cut[width] = visitor.page.evaluate(CUT_TABLES)

    assert {width: tables for width, tables in cut.items() if tables} == {}
