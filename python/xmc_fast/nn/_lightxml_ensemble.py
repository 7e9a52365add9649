"""Several LightXML models as one: encoders for small label sets, clusterings for large ones."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import scipy.sparse as sp
import torch
from sklearn.base import BaseEstimator

from xmc_fast._folder import opening
from xmc_fast.data import read_chunks
from xmc_fast.model import merge_topk, write_pieces
from xmc_fast.model._estimator import OneText
from xmc_fast.nn import _lightxml_store as store
from xmc_fast.nn._lightxml import LightXML


class LightXMLEnsemble(OneText, BaseEstimator):  # type: ignore[misc]
    """Several `LightXML` (encoders, or clusterings by ``random_state``) whose scores are averaged.

    Parameters
    ----------
    members : list of LightXML
    depth : int
        Labels per member that enter the mean.

    Examples
    --------
    >>> members = [LightXML("encoder-folder/", random_state=seed) for seed in (0, 1, 2)]  # doctest: +SKIP
    >>> LightXMLEnsemble(members).fit(texts, Y).predict(["black tea"], k=5)  # doctest: +SKIP
    """

    def __init__(self, members: Sequence[LightXML], *, depth: int = 100) -> None:
        if not members:
            raise ValueError("members must hold at least one model, got none")
        self.members = members
        self.depth = depth

    def fit(self, texts: Sequence[str], Y: Any, **options: Any) -> LightXMLEnsemble:
        """Train the members one after another; options as for `LightXML.fit`."""
        checkpoint = options.pop("checkpoint", None)
        for i, member in enumerate(self.members):
            member.fit(texts, Y, checkpoint=checkpoint and f"{checkpoint}.{i}", **options)
        return self

    def predict(self, texts: Sequence[str], k: int = 5, **options: Any) -> sp.csr_matrix:
        """The ``k`` labels with the highest mean score over the members, best first."""
        found = [member.predict(texts, max(k, self.depth), **options) for member in self.members]
        merged = merge_topk(found, k)
        merged.data /= len(self.members)
        return merged

    @property
    def label_names_(self) -> list[str] | None:
        """Names of the labels, if they were given."""
        return self.members[0].label_names_

    @property
    def nbytes(self) -> int:
        """Bytes of all members."""
        return sum(member.nbytes for member in self.members)

    def predict_file(
        self,
        path: str | os.PathLike[str],
        out: str | os.PathLike[str],
        k: int = 5,
        *,
        chunk_rows: int = 4096,
        **options: Any,
    ) -> int:
        """Predict a file with one text per line in constant memory; returns the number of lines."""
        chunks = read_chunks(path, chunk_rows, format="text")
        return write_pieces(out, (self.predict(list(lines.texts), k, **options) for lines in chunks))

    def save(self, directory: str | os.PathLike[str]) -> None:
        """Write the members as folders in one folder."""
        store.save_ensemble(self, directory)

    @classmethod
    @opening
    def load(
        cls, directory: str | os.PathLike[str], *, device: str | torch.device = "auto"
    ) -> LightXMLEnsemble:
        """Open what `save` wrote."""
        folders, depth = store.read_ensemble(Path(directory))
        return cls([LightXML.load(folder, device=device) for folder in folders], depth=depth)
