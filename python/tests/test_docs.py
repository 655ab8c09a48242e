"""Do the documentation's commands work, does it show what they print, and is every link good?"""

from __future__ import annotations

import functools
import http.server
import json
import re
import shutil
import subprocess
import sys
import threading
import tomllib

import jsonschema
import pytest

from conftest import ROOT
from contigua import designs, machines, profiles
from contigua_experiments import EXPERIMENTS

pytestmark = pytest.mark.programs

sys.path.insert(0, str(ROOT / "scripts" / "site"))
compared = pytest.importorskip("compared")
examples = pytest.importorskip("examples")
findings = pytest.importorskip("findings")

#: Pages whose every block of commands says whether it is run; a block of Python may.
PAGES = [
    ROOT / "README.md",
    ROOT / "docs" / "tutorial.md",
    *sorted((ROOT / "docs" / "how-to").glob("*.md")),
]
RUN = [page for page in PAGES if "<!-- run -->" in page.read_text()]
#: Pages but the README whose commands take more than five seconds.
LONG = {"age-a-server", "large-programs", "reports", "study-a-program", "tutorial"}


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    pytest.importorskip("material", reason="the site needs mkdocs-material (make test installs it)")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert built.returncode == 0, built.stderr
    return folder


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_command_is_run_or_says_why_not(page):
    for block in examples.blocks(page.read_text()):
        command = block.commands[0].text
        told = block.verdict or block.kind == "python"
        assert told, f"{page}: put <!-- run --> or <!-- not run: WHY --> above {command!r}"


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=[pytest.mark.long] if page.stem in LONG else []) for page in RUN],
    ids=lambda page: page.stem,
)
def test_commands_work_and_print_what_is_shown(page):
    def compare(command, printed):
        if command.output:
            assert shape(printed) == shape(command.output), f"`make outputs` writes {page}"

    examples.run_page(page.read_text(), compare)


def shape(output: str) -> list[str]:
    """The words of an output; figures and the widths of tables may differ between machines."""
    words = re.sub(r"[\d.,]+", "0", re.sub(r"[^\w\s.,%:]", " ", output))
    return [" ".join(line.split()) for line in words.splitlines() if line.strip()]


def test_commands_are_found_with_their_outputs_and_documents():
    page = (
        "<!-- run -->\n```console\n$ cat <<'X'\n$ no\nX\n$ b\n1\n2\n```\n\n```console\n$ c\n```\n"
    )
    first, second = examples.blocks(page)
    texts = [(command.text, command.output) for command in first.commands]
    assert texts == [("cat <<'X'\n$ no\nX", ""), ("b", "1\n2\n")]
    assert first.render() == "$ cat <<'X'\n$ no\nX\n$ b\n1\n2\n"
    assert (first.verdict, second.verdict) == ("run", None)


def test_a_command_that_fails_is_shown_with_what_it_said():
    page = "<!-- run -->\n```console\n$ echo hello; false\n```\n"
    with pytest.raises(examples.Failed, match=r"(?s)echo hello.*hello.*status 1"):
        examples.run_page(page, lambda *_: None)


#: A link of Markdown, also of a picture; code is cut out first.
LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)")
CODE = re.compile(r"^```.*?^```$|`[^`\n]+`", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize(
    "page",
    sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]),
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_links_lead_somewhere_in_the_repository(page):
    """As code forges show the pages: relative paths, and anchors as headings make them."""
    for path, anchor in LINK.findall(CODE.sub("", page.read_text())):
        if ":" in path:
            continue
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{page}: no {path}"
        if anchor and target.suffix == ".md":
            assert anchor in anchors(target.read_text()), f"{page}: no heading #{anchor} in {path}"


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S), re.M)
    plain = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading) for heading in headings]
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in plain}


def test_designs_are_compared_as_the_stored_results_say():
    assert compared.PAGE.read_text() == compared.page(), "run make reference"


def test_a_value_of_another_run_changes_the_comparison(monkeypatch, tmp_path):
    (tmp_path / "docs").mkdir()
    for account in compared.ACCOUNTS.values():
        text = (ROOT / "docs" / f"{account}.csv").read_text()
        (tmp_path / "docs" / f"{account}.csv").write_text(text.replace(",-6.4 %,", ",-5.9 %,"))
    monkeypatch.setattr(compared, "ROOT", tmp_path)
    before, now = compared.PAGE.read_text(), compared.page()
    assert now != before and now.count("-5.9 %") == before.count("-6.4 %") > 0


def test_findings_are_those_of_the_stored_results():
    stored = compared.Stored()
    servers = findings.choices(stored)
    assert findings.PAGE.read_text() == findings.page(servers, stored), "run make reference"
    key = ("contiguity-demand", "... Contiguitas with hardware")
    scale, row = stored.rows[key]
    stored.rows[key] = (scale, {**row, "ours": "12.0 %"})
    with pytest.raises(SystemExit, match="no longer say: Used memory"):
        findings.page(servers, stored)


def test_only_a_design_that_is_surely_better_for_as_few_bits_takes_another_from_the_front():
    plain, near, dear = (
        findings.Choice("plain", 0, 5.0, 1.0),
        findings.Choice("near", 10, 4.5, 1.0),
        findings.Choice("dear", 10, 2.0, 0.5),
    )
    assert findings.front([dear, near, plain]) == [plain, near]


def test_every_design_is_compared_once():
    rows = [row for row in compared.page().splitlines() if row.startswith("| `")]
    assert sorted(row.split("`")[1] for row in rows) == designs.names()


def test_the_site_builds_without_a_broken_link(site):
    assert (site / "index.html").exists()


def test_no_page_loads_anything_from_elsewhere(site):
    loads = re.compile(
        r"<(?:script|img|iframe)[^>]+src=\"?(?:https?:)?//|<link[^>]+href=\"?https?:"
    )
    for page in site.rglob("*.html"):
        assert not loads.search(page.read_text()), page


def test_every_name_is_in_the_reference(site):
    def text(page):
        return (site / "reference" / f"{page}.html").read_text()

    for collection in (designs, machines, profiles):
        page = text(f"{collection.kind}s")
        for name in collection.names():
            assert f'id="{collection.kind}-{name}"' in page, name
    for command in ("contigua run", "contigua fleet report", "contigua designs schema"):
        assert command in text("command-line"), command
    assert "RunOptions" in text("python")
    for name in EXPERIMENTS:
        assert f'id="{name}"' in text("experiments"), name


def test_the_reference_says_type_default_meaning_and_source(site):
    text = re.sub(r"<[^>]+>", "", (site / "reference" / "machines.html").read_text())
    text = " ".join(text.split())
    assert "memory_latency duration" in text
    assert re.search(r"entries of the reorder buffer\.[^.]* sandy-bridge: 168", text)
    assert "224 (Intel optimization manual: reorder buffer)" in text
    text = re.sub(r"<[^>]+>", "", (site / "reference" / "designs.html").read_text())
    text = " ".join(text.split())
    assert "scan_interval duration" in text and 'default "10s"' in text
    assert "Everywhere but where the program objects." in text
    assert "transhuge.rst" in text


@pytest.fixture
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright (pip)")
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("needs chromium (Debian package chromium)")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def served(site):
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    handler = functools.partial(Quiet, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


#: Pages with what is wide: real output, long tables, generated lists, signatures, code.
WIDE = ["tutorial", "performance", "reference/machines", "reference/python", "adding-a-scheme"]


@pytest.mark.parametrize(("scheme", "width"), [("light", 390), ("dark", 1280)])
def test_pages_are_well_in_a_browser(site, served, browser, scheme, width):
    page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
    problems = []
    page.on("console", lambda message: problems.append(message.text))
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("response", lambda r: r.status >= 400 and problems.append(f"{r.status} {r.url}"))
    page.on("request", lambda r: r.url.startswith(served) or problems.append(r.url))
    for name in WIDE:
        page.goto(f"{served}{name}.html")
        wider = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        assert page.evaluate(wider) <= 0, f"{name} scrolls sideways"
        assert not problems, name


def test_the_copy_button_copies_commands_without_prompts_and_outputs(served, browser):
    context = browser.new_context(permissions=["clipboard-read", "clipboard-write"])
    page = context.new_page()
    page.goto(served + "tutorial.html")
    block = page.locator(".highlight", has_text="--memory 4G --designs linux-4k,linux-thp --").first
    block.hover()
    block.locator("[data-clipboard-target], .md-code__button").first.click()
    page.wait_for_function("navigator.clipboard.readText().then(text => text.length > 0)")
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied.startswith("contigua run --sample") and "\n" not in copied.strip()


def test_the_search_finds_a_key(served, browser):
    page = browser.new_page(viewport={"width": 1280, "height": 800})
    page.goto(served + "index.html")
    page.click("input[name=query]")
    page.keyboard.type("khugepaged")
    page.wait_for_selector(".md-search-result a[href*='designs.html']", state="attached")


@pytest.mark.parametrize("collection", [designs, machines, profiles], ids=lambda c: c.kind)
def test_the_schema_takes_every_preset_and_knows_every_key(collection):
    schema = collection.schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    for preset in collection:
        validator.validate(tomllib.loads(preset.text))
        # A file with every default written out is a file, too.
        resolved = collection.resolve(preset.name)
        validator.validate(without_nothing(resolved))
        resolved["nonsense"] = 1
        assert not validator.is_valid(resolved), preset.name


def without_nothing(value):
    if isinstance(value, dict):
        return {key: without_nothing(inner) for key, inner in value.items() if inner is not None}
    return value


def test_the_schema_says_what_every_key_means():
    for collection in (designs, machines, profiles):
        schema = collection.schema()
        for name, part in {"": schema, **schema["$defs"]}.items():
            for key, value in part.get("properties", {}).items():
                assert value.get("description"), (collection.kind, name, key)


def test_the_schema_is_printed_for_editors(cli):
    for kind in ("design", "machine", "profile"):
        printed = cli(f"{kind}s", "schema")
        assert printed.returncode == 0, printed.stderr
        assert json.loads(printed.stdout)["properties"]["description"]
