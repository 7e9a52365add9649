"""Why a label, and which setting."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from xmc_fast.plots._axes import axes, finish

if TYPE_CHECKING:
    from xmc_fast.texts import Explanation
    from xmc_fast.tuning import Tuning

FOR, AGAINST, OTHER = "#2ea043", "#da3633", "#8b949e"


def plot_explanation(explanation: Explanation, ax: Any = None, *, top: int | None = None) -> Any:
    """A label's score as bars: its strongest terms for and against, all others together, and the bias.

    Parameters
    ----------
    explanation : from `TextClassifier.explain`
    ax : matplotlib Axes, optional
    top : int, optional
        How many terms; by default those of ``explain(..., top=)``.

    Examples
    --------
    >>> from xmc_fast import TextClassifier
    >>> model = TextClassifier().fit(["green tea", "iron ore"] * 9, [["drink"], ["metal"]] * 9)
    >>> ax = plot_explanation(model.explain("fine green tea", "drink"))
    >>> ax.get_xlabel()
    'contribution'
    """
    ax = axes(ax)
    shown = [c for c in explanation.contributions if c.contribution]
    shown = shown[: explanation.top if top is None else top]
    rows = [(c.term, c.contribution) for c in shown]
    rest = explanation.score - explanation.bias - sum(value for _, value in rows)
    rows += [("(other terms)", rest)] if abs(rest) > 1e-6 else []
    rows += [("(bias)", explanation.bias)]
    values = [value for _, value in rows]
    terms = len(shown)
    colours = [(FOR if v > 0 else AGAINST) if i < terms else OTHER for i, v in enumerate(values)]
    ax.barh(np.arange(len(rows)), values, color=colours)
    ax.set_yticks(np.arange(len(rows)), [term for term, _ in rows])
    ax.invert_yaxis()
    ax.axvline(0, color="black", linewidth=0.8)
    title = f"{explanation.label}: score {explanation.score:.2f}"
    if explanation.probability is not None:
        title += f", probability {explanation.probability:.2f}"
    return finish(ax, "contribution", "", title=title)


def plot_tuning(tuning: Tuning, ax: Any = None) -> Any:
    """What `tune` tried: the score of every setting in each round that it reached, the best setting on top.

    Scores of different rounds are of different labels: compare those of one colour.

    Parameters
    ----------
    tuning : from `xmc_fast.tune`
    ax : matplotlib Axes, optional

    Examples
    --------
    >>> import xmc_fast
    >>> texts, tags = ["green tea", "iron ore"] * 30, [["drink"], ["metal"]] * 30
    >>> ax = plot_tuning(xmc_fast.tune(texts, tags, settings=[{}, {"C": 4.0}], metric="precision@1"))
    >>> ax.get_xlabel()
    'precision@1, %'
    """
    ax = axes(ax)
    order = [trial["setting"] for trial in tuning.last]
    for number in sorted({trial["round"] for trial in tuning.trials}):
        trials = [trial for trial in tuning.trials if trial["round"] == number]
        name = f"round {number}: {trials[0]['rows']:,} rows, {trials[0]['labels']:,} labels"
        places = [order.index(trial["setting"]) for trial in trials]
        ax.plot([100 * trial["score"] for trial in trials], places, "o", markersize=5, label=name)
    names = [", ".join(f"{k}={v}" for k, v in setting.items()) or "(default)" for setting in order]
    ax.set_yticks(np.arange(len(order)), names, fontsize="small")
    ax.invert_yaxis()
    finish(ax, f"{tuning.metric}, %", "")
    ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1), fontsize="small")  # above: points are everywhere
    return ax
