"""Figures in the documentation: pages agree with docs/results, and the commands beside the tables exist.

`test_performance_pages_agree_with_their_results` (test_docs.py) checks the pages that bench/report.py writes.
"""

from __future__ import annotations

import ast
import functools
import importlib
import json
import re
import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCS, BENCH = ROOT / "docs", ROOT / "bench"
PAGES = [ROOT / "README.md", BENCH / "README.md", *sorted(DOCS.rglob("*.md"))]
MEASURED = re.compile(r"^\|.*?\|[^|\n]*\d\.\d.*\|$", re.M)  # a table row with a decimal figure
FENCED = re.compile(r"^```.*?^```", re.S | re.M)
COMMAND = re.compile(r"^python\s+(bench/[\w/]+\.py)(.*)", re.S)
PLACEHOLDER = re.compile(r"[A-Z\d.,]+$")
MARKED = re.compile(r"<!-- ([\w ]+?)(?:: .*?)? -->.*?<!-- end of \1 -->", re.S)
FIGURE = re.compile(
    r"\d(?:[x×]\b| (?:x |times|µs|ms|s\b|seconds|minutes|hours|MB|GB|TB|GFLOP/s|%|points))|factor of \d"
)
BY_HAND = [ROOT / "README.md", DOCS / "index.md", DOCS / "changelog.md"]
BY_HAND += [p for part in ("guide", "howto", "api") for p in sorted((DOCS / part).glob("*.md"))]
BY_HAND += [DOCS / "experiments" / f"{stem}.md" for stem in ("fanin", "lightxml", "linear", "prediction")]
NOT_MEASURED = [  # in sentences: by arithmetic, by definition, or checked by the test or bench named
    "factor of 1.3 (`largest_error` in that file)",  # test_the_error_of_the_plan_is_that_of_its_file
    "PSP above 100 %",
    "33 GB (41,218 x 200,252 x 4 bytes)",
    "aim of 20 µs",
    "A model of about 1 GB",
    "0.2 s at most",  # asserted by bench/predict_open.py
]


@pytest.fixture
def bench(monkeypatch):
    """Imports a module of bench/."""
    monkeypatch.syspath_prepend(str(BENCH))
    return importlib.import_module


def name(page):
    return page.relative_to(ROOT).as_posix()


def sections(text):
    """The head of a page and its parts from heading to heading."""
    head, *parts = re.split(r"^(?=## )", text, flags=re.M)
    return head, parts


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_a_measured_table_has_its_command_in_the_section_or_the_head(page):
    head, parts = sections(page.read_text("utf-8"))
    for part in [head, *parts]:
        if MEASURED.search(part):
            title = part.splitlines()[0]
            assert "python bench/" in part or "python bench/" in head, (
                f"{name(page)}: no command at {title!r}"
            )


@functools.cache
def parsed(script):
    return ast.parse(script.read_text("utf-8"))


def constants(script, seen=()):
    """The strings in a script and in the scripts beside it that it imports."""
    tree = parsed(script)
    found = {n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str)}
    for node in ast.walk(tree):
        modules = [node.module] if isinstance(node, ast.ImportFrom) else []
        modules += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        for module in modules:
            path = BENCH / f"{module}.py"
            if path.is_file() and path not in seen:
                found |= constants(path, (*seen, script, path))
    return found


def commands(text):
    """Script and arguments of every `python bench/...` in a page: lines of blocks, and code in sentences."""
    lines = [line for block in FENCED.findall(text) for line in block.splitlines()]
    for code in lines + re.findall(r"`([^`]+)`", FENCED.sub("", text)):
        match = COMMAND.match(code.removeprefix("$ "))
        if match:
            yield match[1], match[2].split("#")[0].split()


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_commands_name_scripts_parts_and_options_that_exist(page):
    for script, arguments in commands(page.read_text("utf-8")):
        assert (ROOT / script).is_file(), f"{name(page)} names {script}"
        known = constants(ROOT / script)
        options = [a for a in arguments if a.startswith(("-", "[-"))]
        first = arguments.index(options[0]) if options else len(arguments)
        for word in (a.strip("[]") for a in [*arguments[:first], *options]):
            assert word in known or PLACEHOLDER.match(word), f"{name(page)}: {script} does not know {word!r}"


def sentences(text):
    """A page without marked tables, blocks of code, code and tables."""
    text = FENCED.sub("", MARKED.sub("", text))
    text = " ".join(line for line in text.splitlines() if not line.startswith("|"))
    for known in NOT_MEASURED:
        text = text.replace(known, "")
    return re.sub(r"`[^`]*`", "", text)


@pytest.mark.parametrize("page", BY_HAND, ids=name)
def test_sentences_written_by_hand_have_no_measured_figures(page):
    found = FIGURE.search(sentences(page.read_text("utf-8")))
    assert found is None, f"{name(page)}: {found[0]!r} stands in a sentence, not in a table from docs/results"


def test_a_measured_figure_in_a_sentence_is_found():
    for text in (
        "It is 12x faster.",
        "It takes 3.5 ms.",
        "by a factor of 2",
        "P@1 is 0.4 points\nlower",
        "7 %",
    ):
        assert FIGURE.search(sentences(text)), text
    marked = (
        "a <!-- performance: written by x -->\n\n| a | 12x |\n\n`run`: 3 ms\n<!-- end of performance --> b"
    )
    assert sentences(marked) == "a  b"


def test_the_error_of_the_plan_is_that_of_its_file():
    plan = json.loads((ROOT / "python" / "xmc_fast" / "plan.json").read_text("utf-8"))
    said = re.search(
        r"factor of ([\d.]+) \(`largest_error`",
        (DOCS / "guide" / "distributed.md").read_text("utf-8").replace("\n", " "),
    )
    assert f"{plan['seconds']['largest_error']:.1f}" == said[1]


def test_the_tables_of_benches_know_their_machine_and_commit():
    kept = {path.name: json.loads(path.read_text("utf-8")) for path in (DOCS / "results").glob("*.json")}
    tables = {stem: table for stem, table in kept.items() if isinstance(table.get("machine"), dict)}
    assert len(tables) > 20
    for stem, table in tables.items():
        for machine in [table["machine"], *(row["machine"] for row in table["rows"] if "machine" in row)]:
            assert machine["cpu"], stem
            assert machine["commit"], stem
    for cell in kept["dst.json"]["rows"]:
        assert cell["cpu"], cell["name"]
        assert cell["commit"], cell["name"]


def test_the_page_of_dynamic_sparse_training_agrees_with_its_results(bench):
    report = bench("experiment_dst_report")
    cells = json.loads((DOCS / "results" / "dst.json").read_text("utf-8"))["rows"]
    assert all(report.current(cell) for cell in cells), (
        "cells of other parameters: run bench/experiment_dst.py"
    )
    assert (DOCS / "experiments" / "dst.md").read_text("utf-8") == report.page(cells)


def test_the_page_of_declare_agrees_with_its_results(bench):
    kept = json.loads((DOCS / "results" / "declare.json").read_text("utf-8"))
    page = bench("experiment_declare").page(kept)
    assert (DOCS / "experiments" / "declare.md").read_text("utf-8") == page


def test_the_page_of_mach_agrees_with_its_results(bench, tmp_path):
    pytest.importorskip("matplotlib").use("Agg")
    shutil.copytree(DOCS / "results", tmp_path / "results")
    figures = json.loads((tmp_path / "results" / "mach_accuracy.json").read_text("utf-8"))
    (tmp_path / "experiments").mkdir()
    bench("experiment_mach_report").write(figures, bench("experiment_mach").DOCUMENTED, tmp_path)
    made = (tmp_path / "experiments" / "mach.md").read_text("utf-8")
    assert (DOCS / "experiments" / "mach.md").read_text("utf-8") == made


def test_the_tables_of_lightxml_agree_with_their_results(bench):
    rows = json.loads((DOCS / "results" / "lightxml_accuracy.json").read_text("utf-8"))["rows"]
    page = (DOCS / "experiments" / "lightxml.md").read_text("utf-8")
    assert bench("experiment_lightxml").with_tables(page, rows) == page


def test_the_simulated_runs_are_those_of_the_command(bench, capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["simulate_engine.py"])
    bench("simulate_engine").main()
    assert capsys.readouterr().out.strip() in (DOCS / "guide" / "distributed.md").read_text("utf-8")


def test_a_table_says_where_a_peer_is_ahead(bench):
    ahead = bench("ahead")
    rows = [{"m": "xmc_fast", "s": 2.0, "P": 9.0}, {"m": "a", "s": 1.0, "P": 8.0}, {"m": "b", "s": 3.0}]
    said = ahead.said(rows, ahead.Rivals("m", (), ("s",), ("P",)))
    assert said == "A peer is ahead in `s`: a (1 against 2)."
    assert ahead.said(rows[::2], ahead.Rivals("m", (), ("s",))) == "No peer is ahead in this table."
    ratios = [{"ratio": 0.8, "higher": True}, {"ratio": 3.0, "higher": False}, {"ratio": "", "higher": True}]
    said = ahead.said(ratios, ahead.Rivals(ratios=("ratio",), flags=("higher",)))
    assert said == "A peer is ahead in `ratio`: down to 0.8, in 1 of 2 rows; `higher`: in 1 of 3 rows."


def test_a_run_in_parts_keeps_the_other_rows_and_their_machines(bench, tmp_path, monkeypatch):
    common = bench("common")
    monkeypatch.setattr(common, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(common, "KEPT", tmp_path)
    old, new = ({**common.machine(seconds=0.01), "commit": commit} for commit in ("old", "new"))
    first = common.Table("t", ["set", "ms"], old, [{"set": "a", "ms": 1.0}, {"set": "b", "ms": 2.0}])
    first.save(tmp_path)  # as in docs/results
    assert common.machines_line({"machine": old, "rows": first.rows}) == common.machine_line(old)
    again = common.Table("t", ["set", "ms"], new, [{"set": "b", "ms": 3.0}])
    again.keep_others("set")
    again.save(tmp_path / "results")
    saved = json.loads((tmp_path / "results" / "t.json").read_text("utf-8"))
    assert [(row["set"], row["ms"]) for row in saved["rows"]] == [("b", 3.0), ("a", 1.0)]
    lines = common.machines_line(saved)
    assert lines == f"b: {common.machine_line(new)}; a: {common.machine_line(old)}"
    assert "machine" not in bench("report_pages").markdown(saved["rows"])
    csv = (tmp_path / "results" / "t.csv").read_text("utf-8")
    assert [line.count("old") for line in csv.splitlines()] == [0, 0, 1]
