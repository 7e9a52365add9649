"""Several LightXML models as one: encoders for small label sets, clusterings for large ones."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import scipy.sparse as sp
import torch

from xmc_fast.model import merge_topk
from xmc_fast.model.stream import write_pieces
from xmc_fast.nn import _lightxml_store as store
from xmc_fast.nn.lightxml import LightXML
from xmc_fast.pipeline import line_chunks


class LightXMLEnsemble:
    """Several :class:`LightXML` (encoders, or clusterings by ``random_state``) whose scores are added up.

    Parameters
    ----------
    members : list of LightXML
    depth : int
        Labels per member that enter the sum.

    Examples
    --------
    >>> members = [LightXML("encoder-folder/", random_state=seed) for seed in (0, 1, 2)]  # doctest: +SKIP
    >>> LightXMLEnsemble(members).fit(texts, Y).predict(["black tea"], k=5)  # doctest: +SKIP
    """

    def __init__(self, members: Sequence[LightXML], *, depth: int = 100) -> None:
        if not members:
            raise ValueError("members must hold at least one model, got none")
        self.members = list(members)
        self.depth = depth

    def fit(self, texts: Sequence[str], Y: Any, **options: Any) -> LightXMLEnsemble:
        """Train the members one after another; options as for :meth:`LightXML.fit`."""
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
        return write_pieces(
            out, (self.predict(texts, k, **options) for texts in line_chunks(path, chunk_rows))
        )

    def save(self, directory: str | os.PathLike[str]) -> None:
        """Write the members as folders in one folder."""
        store.save_ensemble(self, directory)

    @classmethod
    def load(
        cls, directory: str | os.PathLike[str], *, device: str | torch.device = "auto"
    ) -> LightXMLEnsemble:
        """Open what :meth:`save` wrote."""
        folders, depth = store.read_ensemble(Path(directory))
        return cls([LightXML.load(folder, device=device) for folder in folders], depth=depth)
