"""The pages in a real browser, inside the UI of a running Airflow, on tables that real Dag runs wrote.

Chromium comes from the system (``CHROMIUM`` names another one). The screenshots are in ``build/ui-screenshots``, or where
``UI_SCREENSHOTS`` says: they are made to be looked at.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from stores.install import AXE
from ui import server as servers

pytestmark = [pytest.mark.airflow, pytest.mark.browser]

SCREENSHOTS = Path(os.environ.get("UI_SCREENSHOTS") or Path(__file__).parents[2] / "build" / "ui-screenshots")
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
PATIENCE = 90_000  # milliseconds, on two busy cores
INSIDE = "/plugin/delta-tables/delta-tables"
AXE_SCRIPT = AXE / "node_modules" / "axe-core" / "axe.min.js"
SERIOUS = ("serious", "critical")
BACKGROUND = "element => getComputedStyle(element).backgroundColor"
WIDTHS = (300, 390, 721, 900, 1024, 1081, 1200, 1341, 1400)  # either side of where the style sheet changes
UNNAMED = """() => [...document.querySelectorAll("table.cards tbody tr")].flatMap((row) =>
  [...row.cells].slice(1).filter((cell) => cell.innerText.trim() && !cell.dataset.label && !cell.className.includes("at-"))
    .map((cell) => cell.outerHTML))"""
OVERLAPPING = """() => [...document.querySelectorAll("table.cards tbody td")]
  .filter((cell) => cell.scrollWidth > cell.clientWidth + 1 && getComputedStyle(cell).display !== "inline")
  .map((cell) => cell.outerHTML)"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[servers.Server]:
    running = servers.start(tmp_path_factory.mktemp("airflow"))
    yield running
    running.stop()


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.fail("no Chromium on this machine; install the package chromium, or name one in CHROMIUM")
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=PATIENCE)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture
def visit(server: servers.Server, chromium: Any) -> Iterator[Callable[..., Any]]:
    """Open a path as a user, in a theme; at the end, nothing may have been asked of another host or broken the page's rules."""
    contexts, complaints, elsewhere = [], [], []

    def is_elsewhere(url: str) -> bool:
        return not url.startswith((server.url, "data:", "blob:"))

    def open_page(path: str, *, user: str | None = "viewer", theme: str = "light", zone: str = "UTC", width: int = 1440) -> Any:
        context = chromium.new_context(
            base_url=server.url, viewport={"width": width, "height": 1000}, color_scheme="light" if theme == "light" else "dark"
        )
        contexts.append(context)
        context.set_default_timeout(PATIENCE)
        if user is not None:
            context.add_cookies([{"name": "_token", "value": server.tokens[user], "url": server.url}])
        context.add_init_script(f"localStorage.setItem('theme', '{theme}'); localStorage.setItem('timezone', '\"{zone}\"');")
        page = context.new_page()
        page.on("console", lambda message: complaints.append(message.text) if "Content Security" in message.text else None)
        page.on("pageerror", lambda error: complaints.append(str(error)) if "delta" in str(error.stack) else None)
        page.on("request", lambda request: elsewhere.append(request.url) if is_elsewhere(request.url) else None)
        page.goto(path)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert complaints == []
    # Airflow's own pages may ask elsewhere; ours never do.
    assert [url for url in elsewhere if "delta" in url] == []


def frame(page: Any) -> Any:
    return page.frame_locator("iframe[title='Delta tables']")


def table_path(server: servers.Server, name: str, page: str = "table", **parameters: object) -> str:
    more = "".join(f"&{key}={value}" for key, value in parameters.items())
    return f"{INSIDE}/{page}?table={quote(str(server.tables / name), safe='')}{more}"


def open_transaction(server: servers.Server, name: str) -> str:
    """The id of the open transaction of a table."""
    url = f"{server.url}/delta-tables/api/table?table={quote(str(server.tables / name), safe='')}"
    request = urllib.request.Request(url, headers={"Cookie": f"_token={server.tokens['admin']}"})
    with urllib.request.urlopen(request) as answer:
        (told,) = json.load(answer)["transactions"]
    return told["transaction_id"]


def shoot(page: Any, name: str, *, whole: bool = False) -> None:
    from playwright.sync_api import TimeoutError as PlaywrightTimeout

    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(PlaywrightTimeout):  # Airflow's UI keeps asking while a run is active
        page.wait_for_load_state("networkidle", timeout=10_000)
    page.screenshot(path=SCREENSHOTS / f"{name}.png", full_page=whole)


def test_the_navigation_leads_to_the_pages(visit):
    page = visit("/")
    page.get_by_role("button", name="Browse").click()
    page.get_by_role("menuitem", name="Delta tables").click()
    frame(page).get_by_role("heading", name="Delta tables").wait_for()


def test_from_the_list_to_the_dag_run(visit, server):
    from playwright.sync_api import expect

    page = visit("/plugin/delta-tables")
    frame(page).get_by_role("link", name="sales", exact=True).click()
    expect(page).to_have_url(re.compile(r"/plugin/delta-tables/delta-tables/table\?table="))
    row = frame(page).locator("#history tbody tr").first
    expect(row).to_contain_text("sales")
    row.locator("a.version").click()
    expect(page).to_have_url(re.compile(r"/delta-tables/commit\?table=.*version="))
    page.reload()
    frame(page).get_by_role("heading", name="Made by").wait_for()
    frame(page).locator("#dag-run").click()
    expect(page).to_have_url(re.compile(r"/dags/sales/runs/"))
    expect(page.locator("iframe")).to_have_count(0)


def test_back_returns_to_the_page_before(visit, server):
    from playwright.sync_api import expect

    page = visit(table_path(server, "sales"))
    frame(page).locator("#history a.version").first.click()
    expect(frame(page).get_by_role("heading", name="Checked against")).to_be_visible()
    page.go_back()
    expect(frame(page).get_by_role("heading", name="History")).to_be_visible()


def test_a_race_that_was_won_shows(visit, server):
    from playwright.sync_api import expect

    page = visit(table_path(server, "sales"))
    row = frame(page).locator("#history tbody tr", has_text="raced")
    expect(row.locator("td").last).to_have_text("3")
    row.locator("a.version").click()
    expect(frame(page).locator("#winners tbody tr")).to_have_count(3)


def test_what_happened_last_night(visit, server):
    from playwright.sync_api import expect

    page = visit("/plugin/delta-tables")
    row = frame(page).locator("#tables tbody tr", has_text="/nights")
    expect(row.locator(".failure")).to_contain_text("rejected by clara")
    alone = visit(table_path(server, "right"))
    red = frame(alone).locator("#transactions .state.failed").evaluate(BACKGROUND)
    assert row.locator(".failure .state.rejected").evaluate(BACKGROUND) != red, "a person's answer is no failure"
    superseded = frame(page).locator("#tables tbody tr", has_text="/sales").locator(".failure")
    expect(superseded).to_contain_text("version 17 came later")
    assert superseded.locator(".state.failed").evaluate(BACKGROUND) != red, "the table has newer rows"
    row.locator(".failure a").click()
    rows = frame(page).locator("#transactions tbody tr")
    expect(rows).to_have_count(6)
    for state, task, why in (
        ("waiting", "txn.approve", "Waits for an answer"),
        ("rejected", "txn.approve", "Rejected by clara"),
        ("failed", "txn.audit", "DeltaAuditFailedException"),
        ("failed", "extract", "The source did not answer."),
        ("failed", "txn.write", "<b>17 rows</b> have no customer"),
    ):
        found = rows.filter(has_text=task).filter(has_text=state)
        expect(found.locator(".why")).to_contain_text(why)
    repaired = rows.filter(has_text="ConcurrentDeleteReadException")
    expect(repaired).to_contain_text("2026-03-06")
    repaired.get_by_role("link", name=re.compile("^Version")).click()
    expect(frame(page).locator("#interval")).to_contain_text("2026-03-06")
    page.go_back()
    rows.filter(has_text="extract").get_by_role("link", name="extract", exact=True).click()
    expect(page).to_have_url(re.compile(r"/dags/night/runs/.*/tasks/extract"))


def test_a_table_whose_only_run_failed(visit, server):
    from playwright.sync_api import expect

    page = visit(table_path(server, "right"))
    expect(frame(page).locator("#transactions .why")).to_contain_text("The right one is wrong.")
    expect(frame(page).locator("body")).to_contain_text("No version yet")


def test_a_conflict_is_among_the_transactions_without_a_commit(visit, server):
    from playwright.sync_api import expect

    page = visit(table_path(server, "sales"))
    failed = frame(page).locator("#transactions tbody tr", has_text="conflict")
    expect(failed).to_have_count(1)
    expect(failed.locator(".why")).to_contain_text("Concurrent")
    failed.get_by_role("link", name="txn.commit").click()
    expect(page).to_have_url(re.compile(r"/dags/conflict/runs/.*/tasks/txn\.commit"))


def test_an_open_transaction_is_loaded_when_it_is_asked_for(visit, server):
    from playwright.sync_api import expect

    page = visit(table_path(server, "sales"))
    expect(frame(page).locator("#staged .state")).to_have_count(0)
    frame(page).get_by_role("link", name="Look for staged files").click()
    expect(frame(page).locator("#staged .state.open")).to_have_count(1)
    expect(frame(page).locator("#staged")).to_contain_text("KiB")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_rows_of_a_commit_are_loaded_when_they_are_asked_for(visit, server, theme):
    from playwright.sync_api import expect

    page = visit(table_path(server, "people", "commit", version=1), user="admin", theme=theme)
    section = frame(page).locator("#rows")
    expect(section.locator("table")).to_have_count(0)
    section.get_by_role("link", name="Show rows").click()
    expect(section.locator("tbody tr")).to_have_count(5)  # two before and after, one added
    expect(section).to_contain_text("1 row added, 0 rows removed, 2 rows changed (by id)")
    expect(section.locator("td.differs").first).to_have_text("Person 2")
    # Values of the table are text, not part of the page.
    expect(section).to_contain_text("<script>document.title = 'harm'</script>")
    expect(section.locator("script, img")).to_have_count(0)
    section.scroll_into_view_if_needed()
    shoot(page, f"rows-{theme}")
    page = visit(table_path(server, "people", "rows", version=0), user="admin", theme=theme)
    expect(frame(page).locator("tr.more")).to_contain_text("20 of 30 added rows")
    shoot(page, f"rows-alone-{theme}")


def test_rows_are_not_offered_to_who_may_not_read_them(visit, server):
    from playwright.sync_api import expect

    page = visit(table_path(server, "people", "commit", version=1))
    frame(page).get_by_role("heading", name="Files").wait_for()
    expect(frame(page).locator("#rows")).to_have_count(0)
    page.goto(table_path(server, "people", "rows", version=1))
    expect(frame(page).get_by_role("alert")).to_contain_text("You may not read rows of this table")


def test_a_column_and_its_row_light_up_together(visit, server):
    from playwright.sync_api import expect

    page = visit(table_path(server, "sales"))
    frame(page).locator("svg.chart a[data-version='3']").first.hover()
    expect(frame(page).locator("#v3")).to_have_class(re.compile("lit"))


def test_the_theme_follows_that_of_airflow(visit):
    from playwright.sync_api import expect

    page = visit("/plugin/delta-tables", theme="dark")
    expect(frame(page).locator("html")).to_have_attribute("data-theme", "dark")
    page.evaluate("document.documentElement.classList.replace('dark', 'light')")
    expect(frame(page).locator("html")).to_have_attribute("data-theme", "light")
    expect(frame(page).locator("body")).to_have_css("background-color", "rgb(255, 255, 255)")


def test_times_are_in_the_zone_of_airflow(visit, server):
    from playwright.sync_api import expect

    def shown(zone, name):
        first = frame(visit(table_path(server, "sales"), zone=zone)).locator("#history time").first
        expect(first).to_have_text(re.compile(f" {name}$"))  # a script puts the zone in, some time after the page is there
        return first.inner_text()[:19], first.get_attribute("datetime")

    (there, moment), (here, same) = shown("Asia/Tokyo", "GMT[+]9"), shown("UTC", "UTC")
    assert (there != here, moment) == (True, same)


def test_every_time_and_interval_names_its_zone(visit, server):
    from playwright.sync_api import expect

    for path in (table_path(server, "nights"), table_path(server, "sales", "commit", version=15), "/plugin/delta-tables"):
        page = visit(path, zone="Asia/Tokyo")
        expect(frame(page).locator("time").first).to_have_text(re.compile("GMT"))
        alone, intervals = (frame(page).locator(which).all_inner_texts() for which in (":not(.interval) > time", ".interval"))
        assert any(alone), path
        assert [text for text in [*alone, *intervals] if text and not text.endswith(" GMT+9")] == [], (
            path
        )  # folded ones are empty
        # The zone of an interval comes once.
        assert [text for text in intervals if text.count("GMT") > 1] == [], path


def test_links_of_a_commit_task_lead_here(visit, server):
    from playwright.sync_api import expect

    page = visit(table_path(server, "sales"))
    frame(page).locator("#history a.version").first.click()
    frame(page).locator("#task").click()
    page.get_by_role("link", name="Details", exact=True).click()
    page.get_by_role("link", name="Delta commit").click()
    expect(page).to_have_url(re.compile(r"/plugin/delta-tables/delta-tables/commit\?"))
    frame(page).get_by_role("heading", name="Checked against").wait_for()


def test_nobody_is_sent_to_the_login_page(visit):
    from playwright.sync_api import expect

    page = visit("/delta-tables/", user=None)
    expect(page).to_have_url(re.compile(r"/auth/login"))


def test_alone_the_page_offers_its_place_in_airflow(visit, server):
    from playwright.sync_api import expect

    page = visit(table_path(server, "sales").removeprefix("/plugin/delta-tables"))
    page.get_by_role("link", name="Open in Airflow").click()
    expect(page).to_have_url(re.compile(r"/plugin/delta-tables/delta-tables/table\?table="))
    frame(page).get_by_role("heading", name="History").wait_for()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_screenshots(visit, server, theme):
    from playwright.sync_api import expect

    page = visit("/plugin/delta-tables", theme=theme)
    expect(frame(page).locator("#tables tbody tr")).not_to_have_count(0)
    shoot(page, f"list-{theme}")
    page.goto(table_path(server, "sales"))
    shoot(page, f"table-first-{theme}")
    frame(page).get_by_role("link", name="Look for staged files").click()
    expect(frame(page).locator("#staged .state")).not_to_have_count(0)
    shoot(page, f"table-{theme}")
    frame(page).locator("#staged").scroll_into_view_if_needed()
    shoot(page, f"table-end-{theme}")
    version = frame(page).locator("#history tbody tr", has_text="raced").locator("a.version").inner_text()
    page.goto(table_path(server, "nights"))
    expect(frame(page).locator("#transactions tbody tr")).to_have_count(6)
    frame(page).locator("#transactions").scroll_into_view_if_needed()
    shoot(page, f"night-{theme}")
    page.set_viewport_size({"width": 900, "height": 1000})
    shoot(page, f"night-narrow-{theme}")
    page.set_viewport_size({"width": 1440, "height": 1000})
    page.goto(table_path(server, "right"))
    expect(frame(page).locator("#transactions tbody tr")).to_have_count(1)
    shoot(page, f"table-new-{theme}")
    page.goto(table_path(server, "sales", "commit", version=version))
    expect(frame(page).locator("#winners")).to_be_visible()
    shoot(page, f"commit-{theme}")
    page.goto(table_path(server, "sales", "commit", version=0))
    expect(frame(page).locator("#changes")).to_be_visible()
    shoot(page, f"commit-create-{theme}")
    page.goto(table_path(server, "dropped"))
    expect(frame(page).get_by_role("alert")).to_contain_text("There is no table here")
    shoot(page, f"error-{theme}")
    page = visit("/delta-tables/", user="nobody", theme=theme)
    expect(page.get_by_role("alert")).to_contain_text("You may not see Delta tables")
    shoot(page, f"no-permission-{theme}")
    page = visit("/plugin/delta-tables", user="admin", theme=theme)
    expect(frame(page).get_by_role("heading", name="Connections")).to_be_visible()
    shoot(page, f"list-admin-{theme}")


def test_commits_are_searched_and_sorted(visit, server):
    from playwright.sync_api import expect

    page = visit(table_path(server, "orders"))
    form = frame(page).locator("form.filter")
    form.locator("input[name=operation]").fill("delete")
    form.get_by_role("button", name="Apply").click()
    expect(frame(page).locator("#history tbody tr")).to_have_count(3)
    expect(frame(page).locator("#searched")).to_contain_text("3 commits of versions 0 to 50")
    frame(page).locator("#history thead").get_by_role("link", name="Bytes removed").click()
    expect(frame(page).locator("th[aria-sort=descending]")).to_contain_text("Bytes removed")
    expect(frame(page).locator("#history a.version").first).to_have_text("23")
    frame(page).locator("#history thead").get_by_role("link", name="Bytes removed").click()
    expect(frame(page).locator("#history a.version").first).to_have_text("38")
    frame(page).get_by_role("link", name="Clear").click()
    expect(frame(page).locator("#history tbody tr")).to_have_count(30)


def test_a_key_of_another_run_is_told(visit, server):
    from playwright.sync_api import expect

    page = visit(table_path(server, "keyed"))
    expect(frame(page).locator("#v1")).to_contain_text("key of another run")
    frame(page).locator("#v0").get_by_role("link", name="key met again").click()
    expect(frame(page).locator("#key")).to_contain_text("1 other run found this key committed")
    frame(page).locator("#key").get_by_role("link", name="keyed_night").click()
    expect(page).to_have_url(re.compile(r"/dags/keyed_night/runs/manual__2026-03-02/tasks/txn\.commit"))


def test_from_the_approval_to_what_would_be_published(visit, server):
    from playwright.sync_api import expect

    page = visit("/dags/reviewed_orders/runs/manual__2026-03-02/tasks/txn.approve", user="admin")
    page.get_by_role("link", name="Required Action", exact=False).first.click()
    link = page.get_by_role("link", name="What would be published")
    expect(link).to_be_visible()
    page.goto(link.get_attribute("href"))
    shown = frame(page)
    expect(shown.get_by_role("heading", name="What would be published")).to_contain_text("waiting")
    expect(shown.locator("#waits")).to_have_text("txn.approve")
    expect(shown.locator("#audits .state")).to_have_text(["passed", "passed"])
    expect(shown.locator("#stages tbody tr")).to_have_text([re.compile(r"txn\.write\s*1\s*1-[0-9a-f-]+\s*3")])
    expect(shown.locator("#schema tbody tr")).to_have_text([re.compile(r"new\s*note")])
    expect(shown.locator("#partitions tbody tr")).to_have_count(3)
    expect(shown.locator("#sample")).to_contain_text("<script>document.title = 'harm'</script>")
    expect(shown.locator("#sample script")).to_have_count(0)
    expect(shown.locator("#statistics tbody tr")).to_have_count(4)


def test_the_page_of_a_commit_says_what_was_checked(visit, server):
    from playwright.sync_api import expect

    page = visit(table_path(server, "watched", "commit", version=0))
    checks = frame(page).locator("#checks tbody tr")
    expect(checks).to_have_count(6)
    expect(checks.first).to_contain_text(re.compile(r"warned\s*max_rows\s*txn\.audit\s*audit.*txn\.write 1-", re.DOTALL))
    expect(checks.filter(has_text="txn.approve")).to_contain_text("Approve by clara")
    checks.filter(has_text="txn.approve").get_by_role("link").click()
    expect(page).to_have_url(re.compile(r"/dags/watched_orders/runs/.*/tasks/txn\.approve"))


def test_an_open_transaction_shows_no_rows_to_who_may_not_read_them(visit, server):
    from playwright.sync_api import expect

    page = visit(table_path(server, "reviewed"))
    frame(page).get_by_role("link", name="What is staged").click()
    expect(page).to_have_url(re.compile(r"/delta-tables/transaction\?"))
    expect(frame(page).locator("#sample")).to_contain_text("shown to users who may edit the connection")
    expect(frame(page).locator("#sample table, #statistics th:text('Min')")).to_have_count(0)


def test_when_a_table_is_expected(visit, server):
    from playwright.sync_api import expect

    page = visit(table_path(server, "days"))
    rows = frame(page).locator("#freshness tbody tr")
    expect(rows).to_have_count(2)
    expect(rows.first).to_contain_text(re.compile(r"late.*awaited_late.*:day = 2026-03-02.*Version 0", re.DOTALL))
    expect(rows.last).to_contain_text(re.compile(r"waiting.*awaited_ahead.*2100.*Version 0", re.DOTALL))
    fact = frame(page).locator(".facts .bad")
    expect(fact).to_contain_text("Late since")
    fact.get_by_role("link").click()
    expect(frame(page).locator("#freshness")).to_be_in_viewport()
    rows.first.get_by_role("link", name="there").click()
    expect(page).to_have_url(re.compile(r"/dags/awaited_late/runs/manual__2026-03-02/tasks/there"))


def test_rows_are_compared_by_the_keys_that_are_given(visit, server):
    from playwright.sync_api import expect

    page = visit(table_path(server, "people", "commit", version=1), user="admin")
    section = frame(page).locator("#rows")
    for keys, told in (("nothing", "is not a column of"), ("id, city", "(by id, city)"), ("name", "0 rows changed (by name)")):
        section.get_by_label("Key columns").fill(keys)
        section.get_by_role("button", name="Compare").click()
        expect(section).to_contain_text(told)


def pages_of(server: servers.Server) -> dict[str, str]:
    """Every page that the plugin has, outside the frame."""
    people = {"version": 1}
    inside = {
        "list": "/",
        "table": table_path(server, "sales"),
        "nights": table_path(server, "nights"),
        "columns": table_path(server, "orders"),
        "found": table_path(server, "orders", operation="delete", sort="-removed"),
        "found-nothing": table_path(server, "orders", key="nothing"),
        "new": table_path(server, "right"),
        "awaited": table_path(server, "days"),
        "keyed": table_path(server, "keyed"),
        "commit": table_path(server, "sales", "commit", version=15),
        "commit-keyed": table_path(server, "keyed", "commit", version=0),
        "commit-checked": table_path(server, "watched", "commit", version=0),
        "commit-create": table_path(server, "orders", "commit", version=0),
        "rows": table_path(server, "people", "rows", **people),
        "rows-keyed": table_path(server, "people", "rows", **people, keys="name"),
        "rows-refused": table_path(server, "people", "rows", **people, keys="nothing"),
        "staged": table_path(server, "sales", "transactions"),
        "transaction": table_path(server, "reviewed", "transaction", id=open_transaction(server, "reviewed")),
        "transaction-outdated": table_path(server, "watched", "transaction", id=open_transaction(server, "watched")),
        "transaction-not-open": table_path(server, "reviewed", "transaction", id="unknown"),
        "error": table_path(server, "dropped"),
        "error-commit": table_path(server, "sales", "commit", version=99),
        "error-address": table_path(server, "sales", "commit", version="x"),
    }
    return {name: f"/delta-tables/{path.removeprefix(INSIDE).lstrip('/')}" for name, path in inside.items()}


@pytest.mark.parametrize("width", [390, 1400])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_no_page_has_a_serious_fault_or_is_wider_than_the_window(visit, server, theme, width):
    if not AXE_SCRIPT.exists():
        pytest.fail("axe-core is not installed: run python tests/stores/install.py python axe", pytrace=False)
    page, found, wide = visit("/delta-tables/", user="admin", theme=theme, width=width), {}, []
    for name, path in pages_of(server).items():
        page.goto(path)
        shoot(page, f"{name}-{theme}-{width}", whole=True)
        if page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth"):
            wide.append(name)
        page.evaluate(AXE_SCRIPT.read_text())
        judged = page.evaluate("axe.run()")
        assert judged["passes"], name
        for fault in judged["violations"]:
            if fault["impact"] in SERIOUS:
                found.setdefault(name, []).append([fault["id"], fault["help"], fault["nodes"][0]["html"]])
    assert (json.dumps(found, indent=1), wide) == ("{}", [])


def test_pages_fit_windows_of_every_width(visit, server):
    page, wide, unnamed, overlapping, facts = visit("/delta-tables/", user="admin"), [], [], [], {}
    for name, path in pages_of(server).items():
        page.goto(path)
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": 1000})
            if page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth"):
                wide.append((name, width))
            if width <= 390:
                unnamed += [(name, width, cell) for cell in page.evaluate(UNNAMED)]
                overlapping += [(name, width, cell) for cell in page.evaluate(OVERLAPPING)]
                found = page.locator(".facts.wide")
                if found.count():
                    columns = found.evaluate("element => getComputedStyle(element).gridTemplateColumns.split(' ').length")
                    facts.setdefault(columns, []).append((name, width))
    assert (wide, unnamed, overlapping) == ([], [], [])
    assert list(facts) == [2], "statistics are side by side on a telephone too"


@pytest.mark.parametrize(
    ("page", "crumbs"),
    [
        ("commit", ["Delta tables", "sales", "Version 99"]),
        ("rows", ["Delta tables", "sales", "Version 99", "Rows"]),
    ],
)
def test_from_an_error_there_is_a_way_back(visit, server, page, crumbs):
    from playwright.sync_api import expect

    shown = visit(table_path(server, "sales", page, version=99), user="admin")
    expect(frame(shown).get_by_role("alert")).to_be_visible()
    assert frame(shown).locator(".crumbs > *").all_inner_texts() == crumbs
    frame(shown).locator(".crumbs").get_by_role("link", name="sales").click()
    expect(frame(shown).get_by_role("heading", name="History")).to_be_visible()
