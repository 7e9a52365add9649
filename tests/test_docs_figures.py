"""Figures in the documentation: pages agree with docs/results, and the commands beside the tables exist.

`test_performance_pages_agree_with_their_results` (test_docs.py) checks the tables of all pages.
"""

from __future__ import annotations

import ast
import functools
import importlib
import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCS, BENCH = ROOT / "docs", ROOT / "bench"
PAGES = [ROOT / "README.md", BENCH / "README.md", *sorted(DOCS.rglob("*.md"))]
MEASURED = re.compile(r"^\|.*?\|[^|\n]*\d\.\d.*\|$", re.M)  # a table row with a decimal figure
FENCED = re.compile(r"^```.*?^```", re.S | re.M)
COMMAND = re.compile(r"^python\s+(-m bench[\w.]+|bench/examples/\w+\.py)(.*)", re.S)
PLACEHOLDER = re.compile(r"[A-Z\d.,]+$")
MARKED = re.compile(r"<!-- ([\w -]+?)(?:: .*?)? -->.*?<!-- end of \1 -->", re.S)
FIGURE = re.compile(
    r"\d(?:[x×]\b| (?:x |times|µs|ms|s\b|seconds|minutes|hours|MB|GB|TB|GFLOP/s|%|points))|factor of \d"
)
BY_HAND = [ROOT / "README.md", DOCS / "index.md", DOCS / "changelog.md"]
BY_HAND += [p for part in ("guide", "howto", "api") for p in sorted((DOCS / part).glob("*.md"))]
BY_HAND += [DOCS / "experiments" / f"{stem}.md" for stem in ("fanin", "lightxml", "linear", "prediction")]
NOT_MEASURED = [  # in sentences: by arithmetic, by definition, or checked by the test or bench named
    "factor of 1.5 (`largest_error` in that file)",  # test_the_error_of_the_plan_is_that_of_its_file
    "PSP above 100 %",
    "33 GB (41,218 x 200,252 x 4 bytes)",
    "aim of 20 µs",
    "aim of 60 µs",
    "A model of about 1 GB",
    "0.2 s at most",  # asserted by bench/speed/predict_open.py
]


def bench(name):
    """A module of bench/."""
    return importlib.import_module(f"bench.{name}")


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
        if MEASURED.search(part) and page.name != "tutorial.md":  # it names measures, it does not report any
            title = part.splitlines()[0]
            assert "python -m bench." in part + head, f"{name(page)}: no command at {title!r}"


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
            path = ROOT / f"{str(module).replace('.', '/')}.py"
            if path.is_file() and path not in seen:
                found |= constants(path, (*seen, script, path))
    return found


def commands(text):
    """Script and arguments of every `python -m bench...` in a page: lines of blocks, and code in sentences."""
    lines = [line for block in FENCED.findall(text) for line in block.splitlines()]
    for code in lines + re.findall(r"`([^`]+)`", FENCED.sub("", text)):
        match = COMMAND.match(code.removeprefix("$ "))
        if match:
            script = match[1] if match[1].endswith(".py") else match[1][3:].replace(".", "/") + ".py"
            yield script, match[2].split("#")[0].split()


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


def test_the_cells_of_dynamic_sparse_training_are_those_of_the_command():
    cells = json.loads((DOCS / "results" / "dst.json").read_text("utf-8"))["rows"]
    assert all(bench("experiments.dst_cells").current(cell) for cell in cells)


def test_every_part_is_on_a_page_and_every_result_in_a_part():
    pages = bench("report.pages")
    marks = {m for page in pages.pages() for _, m, _ in pages.MARK.findall(page.read_text("utf-8"))}
    not_run = {"dst_tibkat", "dst_text", "dst_frozen", "dst_grid", "dst_tfidf-grid", "dst_frozen-grid"}
    assert marks == set(pages.PARTS) - not_run
    texts = "".join(path.read_text("utf-8") for path in (BENCH / "report").glob("*.py"))
    kept = {path.stem for path in (DOCS / "results").glob("*.json")}
    assert not [name for name in kept if name not in texts and name.removeprefix("decide_") not in texts
                and name.removeprefix("cluster_") not in texts]  # fmt: skip


def test_every_picture_is_drawn_and_shown():
    drawn = set(bench("report.pictures").PICTURES)
    assert drawn <= {path.stem for path in (DOCS / "img").glob("*.png")}
    shown = "".join(page.read_text("utf-8") for page in PAGES)
    assert not [picture for picture in drawn if f"img/{picture}.png" not in shown]


def test_the_simulated_runs_are_those_of_the_command(capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["simulate_engine.py"])
    bench("speed.simulate_engine").main()
    assert capsys.readouterr().out.strip() in (DOCS / "guide" / "distributed.md").read_text("utf-8")


def test_a_table_says_where_a_peer_is_ahead():
    ahead = bench("report.ahead")
    rows = [{"m": "xmc_fast", "s": 2.0, "P": 9.0}, {"m": "a", "s": 1.0, "P": 8.0}, {"m": "b", "s": 3.0}]
    said = ahead.said(rows, ahead.Rivals("m", (), ("s",), ("P",)))
    assert said == "A peer is ahead in `s`: a (1 against 2)."
    assert ahead.said(rows[::2], ahead.Rivals("m", (), ("s",))) == "No peer is ahead in this table."
    ratios = [{"ratio": 0.8, "higher": True}, {"ratio": 3.0, "higher": False}, {"ratio": "", "higher": True}]
    said = ahead.said(ratios, ahead.Rivals(ratios=("ratio",), flags=("higher",)))
    assert said == "A peer is ahead in `ratio`: down to 0.8, in 1 of 2 rows; `higher`: in 1 of 3 rows."


def test_a_run_in_parts_keeps_the_other_rows_and_their_machines(tmp_path, monkeypatch):
    common = bench("common")
    monkeypatch.setattr(common, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(common, "KEPT", tmp_path)
    old, new = ({**common.machine(seconds=0.01), "commit": commit} for commit in ("old", "new"))
    first = common.Table("t", ["set", "ms"], old, [{"set": "a", "ms": 1.0}, {"set": "b", "ms": 2.0}])
    first.save(tmp_path)  # as in docs/results
    again = common.Table("t", ["set", "ms"], new, [{"set": "b", "ms": 3.0}])
    again.keep_others("set")
    again.save(tmp_path / "results")
    saved = json.loads((tmp_path / "results" / "t.json").read_text("utf-8"))
    assert [(row["set"], row["ms"]) for row in saved["rows"]] == [("b", 3.0), ("a", 1.0)]
    again.add(set="a", ms=4.0)  # a bench may save more than once
    again.keep_others("set")
    assert [(row["set"], row["ms"]) for row in again.rows] == [("b", 3.0), ("a", 4.0)]
    tables = bench("report.tables")
    assert "(commit new, old)" in tables.machine_of(saved)
    saved["rows"][1]["machine"]["simd"] = "another"
    with pytest.raises(ValueError, match="several machines"):
        tables.machine_of(saved)
    assert "machine" not in common.markdown(saved["rows"])
    csv = (tmp_path / "results" / "t.csv").read_text("utf-8")
    assert [line.count("old") for line in csv.splitlines()] == [0, 0, 1]
