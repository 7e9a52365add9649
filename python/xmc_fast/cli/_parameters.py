"""Options from estimators: an option's type, default and help are those of the parameter.

Signatures and docstrings are read from the source, so that no estimator (and no torch) is imported to print
help. Only options that the user gives are passed on: the defaults stay those of the estimator.
"""

from __future__ import annotations

import argparse
import ast
import functools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

PACKAGE = Path(__file__).parents[1]
OLD_NAMES = {"random_state": "--seed", "tol": "--eps"}  # still accepted, not in the help


class Parameter(NamedTuple):
    """One parameter of an estimator."""

    default: Any
    annotation: str
    kind: str  # of the docstring: what follows the colon
    help: str


def add_parameters(
    parser: Any, estimator: str, *names: str, text: dict[str, str] | None = None, **renamed: str
) -> None:
    """Add options for parameters of an estimator ("linear.OneVsAll"); ``renamed`` gives other option names.

    Those that the parser already has are shared, not added again. ``text`` replaces the help of the docstring.
    """
    known = read_parameters(estimator)
    text = text or {}
    there = {action.dest for action in parser._actions}
    for name in (*names, *renamed):
        if name in there:
            continue
        parameter = known[name]
        option = renamed.get(name) or "--" + name.replace("_", "-")
        default = "none" if parameter.default is None else parameter.default
        settings: dict[str, Any] = {"dest": name, "default": argparse.SUPPRESS}
        choices = re.findall(r'"([^"]+)"', parameter.kind)
        if parameter.annotation == "bool":
            settings["action"] = argparse.BooleanOptionalAction
            default = "on" if parameter.default else "off"
        elif choices and not re.search(r"\b(?:float|int|list|array|estimator|path)\b", parameter.kind):
            settings["choices"] = choices
        else:
            settings["type"] = _converter(parameter)
            settings["metavar"] = {"n_buckets": "B", "n_repeats": "R"}.get(
                name, _letter(parameter.annotation)
            )
        help = text.get(name, parameter.help).rstrip(".")
        settings["help"] = f"{help} (default {default})".strip().replace("%", "%%")
        parser.add_argument(option, **settings)
        if old := OLD_NAMES.get(name):
            hidden = {key: settings[key] for key in ("dest", "default", "type")}
            parser.add_argument(old, **hidden, help=argparse.SUPPRESS)


def given(args: argparse.Namespace, estimator: str) -> dict[str, Any]:
    """The parameters of an estimator that are among the options the user gave."""
    return {name: getattr(args, name) for name in read_parameters(estimator) if hasattr(args, name)}


@functools.cache
def read_parameters(estimator: str) -> dict[str, Parameter]:
    """The parameters of an estimator with their documentation, from the source."""
    module, _, name = estimator.rpartition(".")
    node = _find_class(module, name)
    if node is None:
        raise LookupError(f"no class {name} in xmc_fast.{module}")
    documented = _read_docstring(ast.get_docstring(node) or "")
    return {
        name: Parameter(default, annotation, *documented.get(name, ("", "")))
        for name, (default, annotation) in _signature(module, node).items()
    }


def _find_class(module: str, name: str) -> ast.ClassDef | None:
    """A class of a module, or of a file of a package."""
    base = PACKAGE.joinpath(*module.split("."))
    for path in [base.with_suffix(".py"), *sorted(base.glob("*.py"))]:
        if path.is_file():
            for node in ast.parse(path.read_text(encoding="utf-8")).body:
                if isinstance(node, ast.ClassDef) and node.name == name:
                    return node
    return None


def _signature(module: str, node: ast.ClassDef) -> dict[str, tuple[Any, str]]:
    """Parameter to (default, annotation): of ``__init__``, or the fields of a dataclass and its bases."""
    pairs: list[tuple[str, Any, Any]] = []
    found: dict[str, tuple[Any, str]] = {}
    init = next((n for n in node.body if isinstance(n, ast.FunctionDef) and n.name == "__init__"), None)
    if init is not None:
        positional = init.args.args[1:]
        defaults: list[Any] = [None] * (len(positional) - len(init.args.defaults)) + init.args.defaults
        arguments = [*positional, *init.args.kwonlyargs]
        values = [*defaults, *init.args.kw_defaults]
        pairs = [(a.arg, v, a.annotation) for a, v in zip(arguments, values, strict=True)]
    else:
        for base in node.bases:
            parent = _find_class(module, base.id) if isinstance(base, ast.Name) else None
            found |= {} if parent is None else _signature(module, parent)
        fields = [n for n in node.body if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)]
        pairs = [(n.target.id, n.value, n.annotation) for n in fields]  # type: ignore[union-attr]
    for name, value, annotation in pairs:
        default = ast.literal_eval(value) if _is_literal(value) else None
        found[name] = default, ast.unparse(annotation) if annotation else "str"
    return found


def _is_literal(node: Any) -> bool:
    return node is not None and not any(isinstance(n, (ast.Call, ast.Name)) for n in ast.walk(node))


def _read_docstring(text: str) -> dict[str, tuple[str, str]]:
    """Parameter name to (type, first sentence of its description), of a numpydoc docstring."""
    section = text.partition("Parameters\n----------\n")[2].partition("\n\n")[0]
    out: dict[str, tuple[str, str]] = {}
    for entry in re.split(r"\n(?=\S)", section):
        head, _, body = entry.partition("\n")
        names, _, kind = head.partition(" : ")
        sentence = re.split(r"(?<=[^.])\.(?:\s|$)", " ".join(body.split()))[0].replace("`", "")
        out |= {name.strip(): (kind, sentence) for name in names.split(",")}
    return out


def _letter(annotation: str) -> str:
    return "N" if annotation.startswith("int") else "X" if annotation.startswith("float") else "VALUE"


def _converter(parameter: Parameter) -> Callable[[str], Any]:
    """What reads an option's text: numbers by the annotation, "none" where None is allowed."""
    annotation = parameter.annotation
    number: Any = {"int": int, "float": float}.get(annotation.split(" ")[0])
    if annotation == "Any":  # a random_state
        number = int

    def convert(text: str) -> Any:
        if text == "none" and ("None" in annotation or annotation == "Any"):
            return None
        if ("int or float" in parameter.kind or parameter.kind.endswith("or int")) and text.isdecimal():
            # a count, not a share or a name
            return int(text)
        return text if number is None else number(text)

    convert.__name__ = "text" if number is None else "number"
    return convert
