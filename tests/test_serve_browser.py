"""The page in a real browser: typing, explanations, decisions, tables, keyboard, phone width, dark mode."""

from __future__ import annotations

import contextlib
import csv
import io
import os
import shutil
import threading
import time

import pytest

from xmc_fast.cli import main
from xmc_fast.texts import TextClassifier

uvicorn = pytest.importorskip("uvicorn", reason="xmc-fast[serve] is not installed")
playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")

WORDS = {
    "baking": "oven flour dough bread yeast cake sugar crust",
    "eggs": "egg yolk white boil poach omelette shell scramble",
    "storage": "keep fridge freeze days fresh container shelf long",
    "coffee": "coffee bean roast grind espresso filter brew cup",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model that `xmc-fast train --valid` made, so that its measures are kept."""
    work = tmp_path_factory.mktemp("page")
    labels = list(WORDS)
    with open(work / "posts.csv", "w", encoding="utf-8", newline="") as file:
        lines = csv.writer(file)
        lines.writerow(["body", "tags"])
        for i in range(240):
            first, second = labels[i % 4], labels[(i // 4) % 4]
            words = [*WORDS[first].split()[i % 5 :], *WORDS[second].split()[: i % 4]]
            tags = {first, second} if i % 4 else {first}
            lines.writerow([" ".join(words), "|".join(sorted(tags))])
    options = ["--text", "body", "--label", "tags", "--sep", "|", "--valid", "0.2", "--keep-state", "--json"]
    assert main(["train", str(work / "posts.csv"), str(work / "kitchen"), *options]) == 0
    return work / "kitchen"


@pytest.fixture(scope="module")
def address(folder):
    with serving({"kitchen": str(folder)}) as address:
        yield address


@contextlib.contextmanager
def serving(models):
    """A server in a thread; its address."""
    from xmc_fast.serve import Settings, create_app

    server = uvicorn.Server(uvicorn.Config(create_app(Settings(models)), port=0, log_level="error"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.05)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as started:
        options = ["--no-sandbox"] if os.geteuid() == 0 else []
        playwright.expect.set_options(timeout=30_000)
        browser = started.chromium.launch(executable_path=CHROMIUM, args=options)
        yield browser
        browser.close()


@pytest.fixture
def page(browser, address):
    """The page, with every complaint of the browser and every other host collected."""
    context = browser.new_context(viewport={"width": 1200, "height": 800})
    page = context.new_page()
    page.set_default_timeout(30_000)
    page.complaints = complaints = []
    page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on(
        "request", lambda request: None if at_home(request.url, address) else complaints.append(request.url)
    )
    page.goto(address)
    page.wait_for_selector("textarea")
    yield page
    assert complaints == []
    context.close()


def at_home(url, address):
    return url.startswith((address, "data:", "blob:"))


def type_text(page, text):
    page.fill("textarea", text)
    page.wait_for_selector("#suggestions li")
    page.wait_for_selector("#marked mark")


def labels(page):
    return page.locator("#suggestions .suggestion span:nth-child(2)").all_inner_texts()


def test_type_and_see_why(page, folder):
    text = "🥚 egg yolk in the fridge"
    type_text(page, text)
    model = TextClassifier.load(folder)
    assert labels(page) == [s.label for s in model.predict_one(text, 10)]
    page.get_by_role("button", name="storage").first.click()
    playwright.expect(page.locator("#why-label")).to_have_text("storage")
    for kind, sign in (("for", 1), ("against", -1)):
        shown = set(page.locator(f"#marked mark.{kind}").all_inner_texts())
        found = [c for c in model.explain(text, "storage").contributions if sign * c.contribution > 0]
        largest = max(abs(c.contribution) for c in model.explain(text, "storage").contributions)
        assert shown == {c.term for c in found if abs(c.contribution) >= 0.1 * largest}
    page.locator("#threshold").fill("0.99")
    playwright.expect(page.locator("#suggestions li")).not_to_have_count(4)


def test_explanations_as_a_page(browser, folder, tmp_path):
    text, written = "Egg yolk & <b>fridge</b>", tmp_path / "why.html"
    assert main(["tag", str(folder), text, "--html", str(written)]) == 0
    page = browser.new_page()
    page.goto(written.as_uri())
    model = TextClassifier.load(folder)
    shown = page.locator(".xmc-explanation")
    assert shown.count() == len(model.predict_one(text))
    best = shown.first
    assert best.locator("p").last.inner_text() == text  # words in tags are words, not tags
    label = best.locator("b").first.inner_text()
    assert label == model.predict_one(text, 1)[0].label
    signs = {
        text[slice(*span)]: c.contribution > 0
        for c in model.explain(text, label).contributions
        for span in c.spans
        if c.contribution
    }
    marks = best.locator("mark")
    colour = "mark => [mark.innerText, getComputedStyle(mark).backgroundColor.startsWith('rgba(46, 160, 67')]"
    assert dict(marks.evaluate_all(f"marks => marks.map({colour})")) == signs
    page.close()


def test_decisions_become_a_file_for_update(page, folder, tmp_path):
    type_text(page, 'an "egg", yolk\nand shell')
    page.get_by_role("button", name="Accept eggs").click()
    page.get_by_role("button", name="Reject baking").click()
    page.fill("#search", "coff")
    page.get_by_role("button", name="Add", exact=True).click()
    playwright.expect(page.locator("#chosen li")).to_have_count(2)
    page.get_by_role("button", name="Keep for training").click()
    with page.expect_download() as download:
        page.get_by_role("button", name="Download kept texts (1)").click()
    rows = list(csv.reader(io.StringIO(download.value.path().read_text("utf-8"), newline="")))
    assert rows == [["body", "tags"], ['an "egg", yolk\nand shell', "eggs|coffee"]]
    kept = shutil.copy(download.value.path(), tmp_path / "kept.csv")
    assert main(["update", str(folder), str(kept), "--out", str(tmp_path / "newer")]) == 0


def test_a_table_up_and_down(page, tmp_path, folder):
    table = tmp_path / "new.csv"
    rows = [["id", "body"], *([str(i), f"egg {i}\nyolk"] for i in range(450))]
    with open(table, "w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows(rows)
    page.set_input_files("#file", table)
    page.get_by_role("button", name="Tag it").click()
    page.wait_for_selector("#tagged:not([hidden])")
    assert page.inner_text("#upload-status") == "450 rows tagged."
    with page.expect_download() as download:
        page.click("#tagged")
    assert download.value.suggested_filename == "new-tagged.csv"
    tagged = list(csv.reader(io.StringIO(download.value.path().read_text("utf-8"), newline="")))
    assert [row[:2] for row in tagged] == rows
    assert tagged[1][2].split("|")[0] == "eggs"


def test_errors_are_seen_where_the_user_is(page):
    """Below the fold too; and suggestions of another text do not stay."""
    type_text(page, "egg and yolk")
    page.set_viewport_size({"width": 360, "height": 600})
    page.locator("#upload").scroll_into_view_if_needed()
    page.context.set_offline(True)
    page.evaluate("""() => { const box = document.querySelector("textarea");
        box.value = "coffee"; box.dispatchEvent(new Event("input")); }""")
    playwright.expect(page.locator("#problem")).to_be_in_viewport()
    playwright.expect(page.locator("#problem")).to_have_text("The server does not answer.")
    assert page.locator("#suggestions li").count() == 0
    assert page.inner_text("#status") == "No suggestions."
    page.context.set_offline(False)
    type_text(page, "coffee beans")
    assert page.is_hidden("#problem")
    page.complaints.clear()  # the browser tells of the failed request


def test_the_model_tab(page):
    page.click("#tab-model")
    assert page.inner_text("#facts dd >> nth=0") == "4"
    assert page.locator("#measures tbody tr").count() >= 4
    assert page.locator("#reliability svg, #distribution svg").count() == 2
    page.fill("#described", "eggs")
    page.get_by_role("button", name="Show").click()
    page.wait_for_selector("#description dd")
    assert "yolk" in page.inner_text("#description")


def test_the_api_is_described(page, address):
    page.goto(f"{address}/docs")
    page.wait_for_selector(".opblock")
    shown = page.locator(".opblock-summary-path").all_inner_texts()
    assert "/v1/models/{name}/suggest" in [path.replace("\u200b", "") for path in shown]
    page.locator(".opblock").filter(has_text="/v1/models/{name}/suggest").get_by_role("button").first.click()
    playwright.expect(page.locator(".opblock-body").first).to_contain_text("how long do eggs keep?")


def test_each_model_has_its_own_kept_texts(browser, folder):
    with serving({"a": str(folder), "b": str(folder)}) as address, browser.new_context() as context:
        page = context.new_page()
        page.set_default_timeout(30_000)
        page.goto(address)
        type_text(page, "egg and yolk")
        page.get_by_role("button", name="Accept eggs").click()
        page.get_by_role("button", name="Keep for training").click()
        for name, kept in (("b", 0), ("a", 1)):
            page.select_option("#model", name)
            playwright.expect(page.locator("#download")).to_have_text(f"Download kept texts ({kept})")


def test_keyboard_only(page):
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    for _ in range(2):
        page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "tab-suggest"
    page.keyboard.press("ArrowRight")
    assert page.is_visible("#panel-model")
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("Tab")
    page.keyboard.type("egg and yolk")
    page.wait_for_selector("#marked mark")
    for _ in range(20):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.ariaLabel") == "Accept eggs":
            break
    page.keyboard.press("Enter")
    assert page.inner_text("#chosen").startswith("eggs")
    assert page.evaluate("document.activeElement.ariaLabel") == "Accept eggs"  # the focus is kept


def test_everything_has_a_name(page):
    type_text(page, "egg and yolk")
    for tab in ("#tab-suggest", "#tab-model"):
        page.click(tab)
        nameless = page.evaluate("""() =>
            [...document.querySelectorAll('button, input, select, textarea, [role=img], progress')]
            .filter((one) => !(one.labels?.length || one.ariaLabel || one.textContent.trim()))
            .map((one) => one.outerHTML)""")
        assert nameless == []


# Contrast of every text with what is behind it, after WCAG: at least 4.5 to 1.
CONTRAST = """() => {
  const parts = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const light = (c) => c.slice(0, 3).map((v) => v / 255)
    .map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = (one) => {
    for (let at = one; at; at = at.parentElement) {
      const back = parts(getComputedStyle(at).backgroundColor);
      if (back.length < 4 || back[3] === 1) return back;
    }
    return [255, 255, 255];
  };
  return [...document.querySelectorAll('body *')].filter((one) => one.checkVisibility()
      && !one.disabled && !one.closest('svg')
      && [...one.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim())).map((one) => {
    const [a, b] = [light(parts(getComputedStyle(one).color)), light(behind(one))];
    return [(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), one.outerHTML.slice(0, 80)];
  }).filter(([ratio]) => ratio < 4.5);
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1200])
def test_contrast_and_width(page, scheme, width):
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size({"width": width, "height": 800})
    type_text(page, "egg yolk bread fridge")
    for tab in ("#tab-suggest", "#tab-model"):
        page.click(tab)
        assert page.evaluate(CONTRAST) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= width  # nothing to scroll sideways to
