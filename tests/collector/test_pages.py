"""The page in a real browser, on a collector with a job of eight GPUs, one of one GPU, and one with a hostile name."""

import json
import os
import re
import shlex
import shutil
import urllib.request
from datetime import datetime
from pathlib import Path
from urllib.parse import unquote

import pytest
from support.job_records import binding, gpu_traces, records_of
from support.own_port import own_port
from support.running_collector import ThreadCollector
from support.web_client import WebClient, web_address
from support.wire_agent import WireStream, hello, wait_until

from gpusonde.collector.security.identity import Role
from gpusonde.collector.security.tokens import token_entry
from gpusonde.ingest.v1 import ingest_pb2

pytest.importorskip("uvicorn", reason="the page needs the extra web")
playwright = pytest.importorskip("playwright.sync_api", reason="the browser is driven with playwright")

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(not CHROMIUM, reason="there is no chromium here")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
HOSTILE = '<script>document.title="owned"</script><img src=x onerror=alert(1)>'
GENEROUS_MS = 60_000
AXE = os.environ.get("GPUSONDE_TEST_AXE", "")
# Where somebody wants to look at what the browser saw.
PICTURES = os.environ.get("GPUSONDE_TEST_PICTURES", "")
# Each page, and what is there when it is.
PLACES = {
    "": "tbody >> text=resnet-8",
    "#/jobs/resnet-8": "canvas",
    "#/jobs/resnet-8/elsewhere": "tbody >> text=8 x T4",
    "#/jobs/resnet-8/plan": "text=Epochs to train",
}
JOBS = {"host-a": ("resnet-8", 8), "host-b": ("lora-1", 1), "host-c": (HOSTILE, 1)}


def feed(target):
    """Have three agents send a job each, of the same nine epochs; the first two go on."""
    streams = []
    for agent, (job, count) in JOBS.items():
        traces = {f"GPU-{agent}-{i}": trace for i, trace in enumerate(gpu_traces(count).values())}
        pending = records_of(traces, [binding(gpu, job) for gpu in traces], agent_id=agent)
        records = [ingest_pb2.Record.FromString(each.entry.payload) for each in pending]
        stream = WireStream(target, hello(agent), timeout_s=280)
        stream.greet()
        records = records if job == HOSTILE else records[:-1]
        stream.send(*records).wait_acked(len(records))
        streams.append(stream)
    return streams


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    directory = tmp_path_factory.mktemp("pages") / "data"
    with ThreadCollector(directory, web__listen="127.0.0.1:0", store__segment_interval="100ms") as collector:
        streams = feed(collector.target)
        client = WebClient(directory)
        wait_until(lambda: has_told(client), 300, "states and cycles of all jobs")
        yield "http://{}:{}/".format(*web_address(directory))
        for stream in streams:
            stream.close()


def has_told(client):
    runs = client.get("/v1/runs")["runs"]
    jobs = client.get("/v1/jobs")["jobs"]
    return len(runs) == 10 and len(jobs) == 3 and all(job["history"] and "level" in job for job in jobs)


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as driver:
        running = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield running
        running.close()


@pytest.fixture
def page(browser):
    """A page whose errors, and whose requests to anywhere else, fail the test."""
    context = browser.new_context(viewport={"width": 1100, "height": 800})
    context.set_default_timeout(GENEROUS_MS)
    page = context.new_page()
    page.errors, page.hosts = [], set()
    page.on("pageerror", lambda error: page.errors.append(str(error)))
    page.on("console", lambda said: page.errors.append(said.text) if is_fault(said) else None)
    page.on("request", lambda request: page.hosts.add(re.sub(r"^(\w+://[^/]+).*", r"\1", request.url)))
    yield page
    context.close()
    assert page.errors == []
    assert len(page.hosts) <= 1


def is_fault(said):
    """Whether a line of the console is one; that a busy collector has the page ask again is none."""
    return said.type == "error" and not re.search(r"responded with a status of (429|503) ", said.text)


def picture(page, name):
    if PICTURES:
        page.screenshot(path=str(Path(PICTURES) / f"{name}.png"))


def test_the_fleet_lists_jobs_and_shows_the_time_of_every_gpu(page, filled):
    page.goto(filled)
    page.get_by_role("link", name="resnet-8").wait_for()
    heat = page.get_by_role("img", name="10 GPUs from")
    heat.wait_for()
    page.get_by_text("live", exact=True).wait_for()
    picture(page, "web_fleet")
    heat.focus()
    page.keyboard.press("ArrowDown")
    page.get_by_text(re.compile(r"GPU-host-\w-\d: \w+ since .*, job ")).wait_for()
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile("#/jobs/"))


def test_a_job_shows_its_state_its_cycles_and_its_traces_down_to_ticks(page, filled):
    asked = []
    page.on("request", lambda request: asked.append(request.url) if "/samples?" in request.url else None)
    page.goto(f"{filled}#/jobs/resnet-8")
    chart = page.get_by_role("group", name="Trace of 8 of 8 GPUs")
    chart.locator("canvas").wait_for()
    page.get_by_role("heading", name="Cycles").wait_for()
    assert page.get_by_role("region", name="GPUs").get_by_role("row").count() == 9
    picture(page, "web_job")
    widths = []
    chart.focus()
    for _ in range(12):
        before = len(asked)
        page.keyboard.press("w")
        wait_for(page, lambda before=before: len(asked) > before)
        widths.append(width_of(asked[-1]))
    assert widths == sorted(widths, reverse=True)
    assert widths[-1] < 2.0
    page.keyboard.press("0")
    wait_for(page, lambda: width_of(asked[-1]) > 100)


def test_what_an_epoch_takes_and_costs_elsewhere_has_its_evidence_and_its_command(page, filled):
    page.goto(f"{filled}#/jobs/resnet-8")
    page.get_by_role("link", name="On other GPUs").click()
    rows = page.get_by_role("region", name="every GPU").get_by_role("row")
    rows.nth(1).wait_for()
    assert rows.count() > 60
    own = rows.filter(has=page.get_by_role("cell", name="8 x T4", exact=True))
    assert "measured" in own.inner_text()
    # Its metrics do not tell for sure that it is an epoch.
    page.get_by_text(re.compile("^A cycle takes .* on 8 x T4")).wait_for()
    plane = page.get_by_role("img", name=re.compile(r"Time and cost of one cycle on \d+ GPUs; the fastest is 8 x "))
    plane.focus()
    page.keyboard.press("ArrowRight")
    page.get_by_text(re.compile(r"^8 x \S+: .*, extrapolated, memory fits: ")).wait_for()
    picture(page, "web_elsewhere")
    page.get_by_label("Order by").select_option("cost")
    first = rows.nth(1)
    model, latency = first.get_by_role("cell").nth(0).inner_text(), first.get_by_role("button").nth(0)
    told = latency.inner_text()
    latency.click()
    dialog = page.get_by_role("dialog", name=f"One cycle on {model}: {told}")
    dialog.get_by_text(re.compile(r"\d+ ticks of GPU GPU-host-a-\d \(Tesla T4\)")).wait_for()
    dialog.get_by_text(re.compile("crossgpu-.*: prior")).wait_for()
    (again,) = asked_again(dialog.locator("pre").inner_text())["predictions"]
    assert [again["gpu_model"], again["gpu_count"]] == [model.partition(" x ")[2], 8]
    unit = 1000 if told.endswith("ms") else 1
    assert float(again["epoch_latency"].rstrip("s")) * unit == pytest.approx(float(told.split()[0]), rel=0.01)
    dialog.get_by_role("button", name="Close").click()
    page.get_by_label("Only where it fits").check()
    wait_for(page, lambda: rows.count() == 2)


def test_a_deadline_is_dragged_and_the_plan_at_it_is_shown(page, filled):
    page.goto(f"{filled}#/jobs/resnet-8")
    page.get_by_role("link", name="What to rent").click()
    page.get_by_label("Epochs to train").fill("90")
    page.get_by_label("Machines of each kind").fill("2")
    page.get_by_label("Clouds").fill("nowhere")
    page.get_by_role("button", name="Plan").click()
    page.get_by_text(re.compile("Not planned: .*no provider of the catalogue is called 'nowhere'")).wait_for()
    page.errors[:] = [text for text in page.errors if "400" not in text]
    page.get_by_label("Clouds").fill("aws")
    page.keyboard.press("Enter")
    rows = page.get_by_role("region", name="plans").get_by_role("row")
    rows.nth(2).wait_for()
    page.get_by_text("an epoch takes 20.0 s on 8 x T4").wait_for()
    slider = page.get_by_label("Deadline")
    chosen = page.get_by_text(re.compile("per hour$"))
    cheapest = chosen.inner_text()
    picture(page, "web_plan")
    slider.focus()
    page.keyboard.press("Home")
    wait_for(page, lambda: rows.nth(1).get_by_role("cell").nth(4).inner_text() in chosen.inner_text())
    assert chosen.inner_text() != cheapest
    plane = page.get_by_role("img", name=re.compile(r"\d+ plans by time and cost; by .* it is "))
    # The mouse drags it back: to the right end, and beyond.
    box = plane.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 100)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] + 50, box["y"] + 100, steps=5)
    page.mouse.up()
    wait_for(page, lambda: chosen.inner_text() == cheapest)
    chosen.get_by_role("button").click()
    dialog = page.get_by_role("dialog")
    again = asked_again(dialog.locator("pre").inner_text())
    front = [(one["estimate"]["time_at_confidence_s"], one["estimate"]["cost_usd"]) for one in again["points"]]
    beaten = [any(x <= time and y <= cost and (x, y) != (time, cost) for x, y in front) for time, cost in front]
    assert beaten.count(False) == rows.count() - 1
    page.keyboard.press("Escape")
    page.set_viewport_size({"width": 360, "height": 740})
    wait_for(page, lambda: page.evaluate("document.documentElement.scrollWidth") <= 360)
    if AXE:
        # In the page's own world, which its policy does not reach.
        page.evaluate(Path(AXE).read_text())
        assert [each["id"] for each in page.evaluate("axe.run()")["violations"]] == []


def asked_again(command):
    """Do what a command of curl says, by what it is made of."""
    curl, silent, header, kind, data, body, url = shlex.split(command)
    assert (curl, silent, header, data) == ("curl", "-s", "-H", "-d")
    name, _, value = kind.partition(": ")
    with urllib.request.urlopen(urllib.request.Request(url, body.encode(), {name: value}), timeout=60) as answer:
        return json.load(answer)


def test_what_speaks_for_a_state_is_a_question_that_no_name_can_break(page, filled):
    page.goto(filled)
    page.get_by_role("link", name=HOSTILE).click()
    page.get_by_text("(probability ").get_by_role("button").click()
    dialog = page.get_by_role("dialog", name="The state: ")
    dialog.get_by_text(re.compile(r"^\d+ ticks of GPU")).wait_for()
    *_, url = shlex.split(dialog.locator("pre").inner_text())
    with urllib.request.urlopen(url, timeout=60) as answer:
        assert json.load(answer)["job"]["job_id"] == HOSTILE
    page.keyboard.press("Escape")
    assert page.get_by_role("dialog").count() == 0


def test_a_job_that_cannot_be_predicted_says_why(page, filled):
    page.goto(f"{filled}#/jobs/of-nobody/elsewhere")
    page.get_by_text(re.compile("Not predicted: .*of-nobody")).wait_for()
    # The browser tells of every answer that is none.
    page.errors[:] = [text for text in page.errors if "404" not in text]


def wait_for(page, condition):
    """Wait while the browser's events come in, which they do only while it is asked something."""
    for _ in range(GENEROUS_MS // 50):
        if condition():
            return
        page.wait_for_timeout(50)
    raise AssertionError("waited in vain")


def width_of(url):
    times = re.findall(r"(?:start|end)_time=([^&]+)", url)
    start, end = (unix_s(text) for text in times)
    return end - start


def unix_s(text):
    return datetime.fromisoformat(unquote(text).replace("Z", "+00:00")).timestamp()


def test_a_total_gives_the_end_of_the_job(page, filled):
    page.goto(f"{filled}#/jobs/resnet-8")
    page.get_by_role("heading", name="Cycles").wait_for()
    page.get_by_label("Cycles in all").fill("20")
    page.keyboard.press("Tab")
    page.get_by_text(re.compile(r"between .* and .*\(\d+\.\d %\)")).wait_for()


def test_what_users_have_named_is_text_and_nothing_else(page, filled):
    page.goto(filled)
    link = page.get_by_role("link", name=HOSTILE)
    link.wait_for()
    link.click()
    page.get_by_role("heading", name=HOSTILE).wait_for()
    assert page.locator("main script, main img").count() == 0
    assert page.title() == f"{HOSTILE} - gpusonde"


def test_a_phone_shows_it_without_scrolling_sideways_in_dark_too(page, filled):
    page.set_viewport_size({"width": 360, "height": 740})
    page.emulate_media(color_scheme="dark")
    for place, sign in PLACES.items():
        page.goto(f"{filled}{place}")
        page.locator(sign).first.wait_for()
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        picture(page, f"web_phone_{place.rpartition('/')[2] or 'fleet'}")


def test_everything_can_be_reached_with_the_keyboard_and_has_a_name(page, filled):
    page.goto(filled)
    page.get_by_role("link", name="resnet-8").wait_for()
    reached = []
    for _ in range(12):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.textContent || document.activeElement.ariaLabel || ''"))
    assert reached[0] == "Skip to content"
    assert any("resnet-8" in text for text in reached)
    assert page.locator("button:not(:has-text(' ')):empty, a:empty").count() == 0


def test_the_link_to_the_content_leaves_the_view_as_it_is(page, filled):
    page.goto(f"{filled}#/jobs/resnet-8")
    page.get_by_role("heading", name="Cycles").wait_for()
    page.get_by_role("link", name="Skip to content").focus()
    page.keyboard.press("Enter")
    wait_for(page, lambda: page.evaluate("document.activeElement.id") == "view")
    assert page.url == f"{filled}#/jobs/resnet-8"
    assert page.get_by_role("heading", name="resnet-8").count() == 1


def test_an_address_that_is_none_has_a_page_all_the_same(browser, filled):
    page = browser.new_page()
    page.set_default_timeout(GENEROUS_MS)
    errors = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(f"{filled}#/jobs/%")
    page.get_by_text("live", exact=True).wait_for()
    page.get_by_text("Not loaded: ").wait_for()
    page.context.close()
    assert errors == []


def test_a_job_that_ends_is_no_longer_listed_as_active(page, filled):
    page.goto(filled)
    page.get_by_role("link", name="resnet-8").wait_for()
    counts = page.evaluate(
        """async () => {
          const { Fleet } = await import("./fleet.js");
          const fleet = new Fleet({}, document.createElement("div"));
          const job = (start, end, active) => ({
            scheduler: "s", job_id: "j", active, state: "JOB_STATE_NORMAL", reason: "", members: [], history: [],
            start_time: `2026-11-23T12:00:${start}Z`, end_time: `2026-11-23T12:00:${end}Z`,
            state_time: `2026-11-23T12:00:${start}Z`,
          });
          const counts = [];
          for (const one of [job(10, 20, true), job(10, 30, false), job(40, 50, true), job(10, 30, false)]) {
            fleet.change({ jobs: [one] });
            counts.push([...fleet.jobs.values()].map((job) => job.active));
          }
          fleet.close();
          return counts;
        }"""
    )
    assert counts == [[True], [False], [False, True], [False, True]]


def test_the_last_change_of_a_job_is_shown_however_soon_it_comes(page, filled):
    page.goto(filled)
    loads = page.evaluate(
        """async () => {
          const { JobView } = await import("./job.js");
          const asked = [];
          const again = new Promise((resolve) => {
            const get = async (path) => {
              if (asked.push(path) === 2) resolve();
              throw new Error("nothing");
            };
            const view = new JobView({ get }, document.createElement("div"), "j");
            view.load().then(() => view.change({ jobs: [{ job_id: "j" }] }));
          });
          await again;
          return asked;
        }"""
    )
    assert loads == ["/v1/jobs/j", "/v1/jobs/j"]


def test_who_is_on_a_number_stays_on_it_when_the_page_hears_something_new(page, filled):
    page.goto(filled)
    page.get_by_role("link", name="resnet-8").wait_for()
    focused = page.evaluate(
        """async () => {
          const { el, refill } = await import("./parts.js");
          const box = document.getElementById("view");
          const numbers = () => [el("button", {}, "1"), el("p", {}, el("button", {}, "2"))];
          refill(box, ...numbers());
          box.querySelectorAll("button")[1].focus();
          refill(box, ...numbers());
          return document.activeElement.textContent;
        }"""
    )
    assert focused == "2"


@pytest.mark.skipif(not AXE, reason="GPUSONDE_TEST_AXE names no axe.min.js (of npm's axe-core)")
@pytest.mark.parametrize("colours", ["light", "dark"])
def test_axe_finds_nothing_serious(browser, filled, colours):
    # The page's own policy would keep the checker out.
    page = browser.new_context(bypass_csp=True, color_scheme=colours).new_page()
    page.set_default_timeout(GENEROUS_MS)
    for place, sign in PLACES.items():
        page.goto(f"{filled}{place}")
        page.locator(sign).first.wait_for()
        page.add_script_tag(path=AXE)
        found = page.evaluate("axe.run()")["violations"]
        assert [(each["id"], each["impact"], [node["html"] for node in each["nodes"]]) for each in found] == []
    page.context.close()


def test_a_token_is_asked_for_and_kept_out_of_every_address(browser, tmp_path):
    (tmp_path / "tokens.toml").write_text(token_entry("of-a-reader", Role.READER))
    settings = {"security__tokens_file": str(tmp_path / "tokens.toml"), "security__anonymous": "never"}
    with ThreadCollector(tmp_path / "data", web__listen="127.0.0.1:0", **settings):
        page = browser.new_page()
        page.set_default_timeout(GENEROUS_MS)
        asked = []
        page.on("request", lambda request: asked.append(request.url))
        page.goto("http://{}:{}/".format(*web_address(tmp_path / "data")))
        # What no header can carry is asked for again before it is kept.
        for token, told in (
            ("caf\u00e9", "Type it again"),
            ("\u20ac", "Type it again"),
            ("of-nobody", "is not known here"),
            ("of-a-reader", ""),
        ):
            page.get_by_label("Token", exact=True).fill(token)
            page.get_by_role("button", name="Use it").click()
            if told:
                page.get_by_role("dialog").get_by_text(told).wait_for()
        page.get_by_text("No job has run here yet").wait_for()
        page.reload()
        page.get_by_text("No job has run here yet").wait_for()
        page.evaluate("sessionStorage.setItem('gpusonde-token', '\u20ac')")
        page.reload()
        page.get_by_label("Token", exact=True).wait_for()
        page.context.close()
        assert not any("of-a" in url for url in asked)


def test_a_page_whose_collector_is_gone_says_so_and_comes_back(browser, tmp_path):
    address = f"127.0.0.1:{own_port()}"
    page = browser.new_page()
    page.set_default_timeout(GENEROUS_MS)
    with ThreadCollector(tmp_path / "data", web__listen=address):
        page.goto(f"http://{address}/")
        page.get_by_text("live", exact=True).wait_for()
    page.get_by_role("alert").get_by_text("The collector has not answered since").wait_for()
    with ThreadCollector(tmp_path / "data", web__listen=address):
        page.get_by_text("live", exact=True).wait_for()
        assert page.get_by_role("alert").is_hidden()
        page.context.close()
