"""Pictures of data sets."""

from __future__ import annotations

from typing import Any

import numpy as np

from xmc_fast._arrays import labels
from xmc_fast.data import fit_power_law
from xmc_fast.plots._axes import axes


def label_distribution(Y: Any, ax: Any = None, *, name: str = "labels") -> Any:
    """Label frequencies by rank on log-log axes, with the fitted power law N_r = N_1 r^-beta.

    Parameters
    ----------
    Y : binary array or sparse matrix of shape (points, labels)
    ax : matplotlib Axes, optional
        By default new axes in a new figure.
    name : str
        Name of the points in the legend.

    Returns
    -------
    matplotlib Axes

    Examples
    --------
    >>> from xmc_fast.data import make_synthetic
    >>> import matplotlib
    >>> matplotlib.use("agg")
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
    ax.loglog(rank, counts, ".", markersize=3, label=name)
    ax.loglog(rank, law(rank), "-", linewidth=1, label=f"{law.n1:.3g} · r^-{law.beta:.2f}")
    ax.set(xlabel="rank of the label", ylabel="points of the label")
    ax.legend()
    return ax
