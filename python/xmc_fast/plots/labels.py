"""Label frequencies and propensities."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from xmc_fast._validate import labels
from xmc_fast.data import fit_power_law
from xmc_fast.plots._axes import axes, finish
from xmc_fast.propensity import PRESETS, PropensityModel, checked

_POINTS = 2000  # on a logarithmic axis


def label_distribution(Y: Any, ax: Any = None, *, name: str = "labels") -> Any:
    """Label frequencies by rank on log-log axes, with the fitted power law N_r = N_1 r^-beta.

    Parameters
    ----------
    Y : binary array or sparse matrix of shape (points, labels)
    ax : matplotlib Axes, optional
    name : str
        Name of the points in the legend.

    Examples
    --------
    >>> from xmc_fast.data import make_synthetic
    >>> ax = label_distribution(make_synthetic(1000, 100, 50).Y)
    >>> ax.get_xlabel()
    'rank of the label'
    """
    y = labels(Y)
    counts = np.sort(np.bincount(y.indices, minlength=y.shape[1]))[::-1]
    counts = counts[counts > 0]
    if len(counts) == 0:
        raise ValueError("Y has no positive entry: there is no distribution to draw")
    ax = axes(ax)
    rank = np.arange(1, len(counts) + 1)
    law = fit_power_law(counts)
    shown = np.unique(
        np.geomspace(1, len(counts), _POINTS).round().astype(np.int64)
    )  # a million would hide each other
    ax.loglog(shown, counts[shown - 1], ".", markersize=3, label=name)
    ax.loglog(rank, law(rank), "-", linewidth=1, label=f"{law.n1:.3g} · r^-{law.beta:.2f}")
    return finish(ax, "rank of the label", "points of the label")


def plot_propensity(
    Y: Any,
    models: Mapping[str, PropensityModel] | None = None,
    *,
    propensity: Any = None,
    ax: Any = None,
) -> Any:
    """Propensity against label frequency: the models' curves, and given values as points.

    Parameters
    ----------
    Y : binary matrix of shape (n, L)
        Training labels: they give n and the frequencies.
    models : mapping of name to model, optional
        By default the presets of JPV.
    propensity : array of shape (L,), optional
        Values to draw as points, e.g. a direct estimate.
    ax : matplotlib Axes, optional

    Examples
    --------
    >>> plot_propensity(np.eye(20)).get_ylabel()
    'propensity'
    """
    ax = axes(ax)
    y = labels(Y)
    counts = np.bincount(y.indices, minlength=y.shape[1])
    if propensity is not None:
        points = np.unique(
            np.stack([np.maximum(counts, 0.5), checked(propensity, counts.shape)], axis=1), axis=0
        )
        ax.plot(*points.T, ".", ms=3, alpha=0.5, label="given")
    grid = np.unique(np.round(np.geomspace(1, max(int(counts.max(initial=1)), 2), 200)))
    for name, model in (PRESETS if models is None else models).items():
        ax.plot(grid, model(grid, y.shape[0]), label=f"JPV {name}" if models is None else name)
    return finish(ax, "training points of the label", "propensity", xscale="log", ylim=(0, 1.02))
