"""The models of a server: opened once, and opened anew when their folder is replaced."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from xmc_fast._folder import MANIFEST, load
from xmc_fast.model import SparseModel
from xmc_fast.serve._batching import Batcher
from xmc_fast.serve._facts import facts
from xmc_fast.serve._settings import Settings
from xmc_fast.texts import Suggestion, TextClassifier

Text = str | dict[str, str]  # one text, or its columns by name

log = logging.getLogger("xmc_fast.serve")
POLL = 1.0  # seconds between looks at the folders


def column(text: Text, name: str, classifier: TextClassifier) -> str:
    """One column of a text; a plain string is the last column, as in `TextClassifier.predict`."""
    if isinstance(text, str):
        return text if name == classifier.text_columns_[-1] else ""
    return text.get(name, "")


def predict(classifier: TextClassifier, texts: list[Text], k: int) -> list[list[Suggestion]]:
    """The suggestions of texts, strings or columns."""
    columns = {name: [column(text, name, classifier) for text in texts] for name in classifier.text_columns_}
    found: list[list[Suggestion]] = classifier.predict(
        columns if len(columns) > 1 else next(iter(columns.values())), k
    )
    return found


class ServedModel:
    """One model under its name: the classifier of now, and the batches for it.

    A replaced folder is opened beside the old model, then takes its place between two batches: a batch that
    runs keeps the model it started with. A folder that is gone or damaged changes nothing but `problem`.
    """

    def __init__(self, name: str, folder: str, settings: Settings, observe: Callable[[int], Any]) -> None:
        self.name, self.folder, self.threads = name, Path(folder), settings.threads
        self.mmap = settings.mmap
        self.problem: str | None = None
        self._predicting = ThreadPoolExecutor(1, f"predict-{name}")
        self._explaining = ThreadPoolExecutor(1, f"explain-{name}")
        self.stamp = self._stamp()
        self._open()
        self.suggest = Batcher(
            self._suggest, self._predicting, max_waiting=settings.max_waiting, observe=observe
        )

    def _stamp(self) -> tuple[int, int] | None:
        """Changes when the folder is replaced; None without a model there."""
        try:
            status = os.stat(self.folder / MANIFEST)
        except OSError:
            return None
        return status.st_ino, status.st_mtime_ns

    def _open(self) -> None:
        model = load(self.folder, mmap=self.mmap)
        if not isinstance(model, TextClassifier):
            raise ValueError(f"{self.folder} is not a text model: only those can be served")
        model.n_jobs = self.threads
        if isinstance(model.model_, SparseModel):
            model.model_.prepare(n_jobs=self.threads)
        predict(model, [" ".join(model.label_names_[:100])], 1)  # what is made at the first call is made now
        folded = [name.casefold() for name in model.label_names_]
        known = facts(model, self.folder)
        modified = datetime.fromtimestamp(os.path.getmtime(self.folder / MANIFEST), tz=timezone.utc)
        # One assignment: requests see the old model or the new one, never parts of both.
        self._now = (model, folded, known | {"modified": modified.isoformat(timespec="seconds")})

    @property
    def classifier(self) -> TextClassifier:
        return self._now[0]

    def facts(self) -> dict[str, Any]:
        """What the page shows of the model; see `xmc_fast.serve._facts`."""
        return {"name": self.name, **self._now[2], "problem": self.problem}

    async def refresh(self) -> None:
        """Open the model anew if its folder was replaced."""
        stamp = await asyncio.to_thread(self._stamp)
        if stamp is None:
            if self.problem is None:
                log.warning("model %s: the folder is gone, the loaded model stays in use", self.name)
            self.problem = "the model's folder is gone; the loaded model stays in use"
            return
        if stamp == self.stamp and self.problem is None:
            return
        try:
            if stamp != self.stamp:
                await asyncio.to_thread(self._open)
                log.info("model %s: the replaced folder was opened", self.name)
            self.stamp, self.problem = stamp, None
        except Exception as error:  # whatever it is (little memory too), the next look must come
            if self.problem is None:
                log.warning("model %s: the new folder cannot be opened: %s", self.name, error)
            self.problem = "the new model cannot be opened; the loaded one stays in use"

    def _suggest(self, texts: list[Text], k: int) -> list[Any]:
        classifier = self.classifier
        return [(classifier, row) for row in predict(classifier, texts, k)]

    async def explain(
        self, classifier: TextClassifier, text: Text, label: str | None, top: int
    ) -> dict[str, Any]:
        """Why a label: the contributions of the terms with their places in the text."""
        whole: Any = {name: column(text, name, classifier) for name in classifier.text_columns_}
        if len(whole) == 1:
            (whole,) = whole.values()
        return await self._aside(lambda: classifier.explain(whole, label, top).to_dict())

    async def describe(self, label: str, top: int) -> dict[str, Any]:
        """What the model knows about a label."""
        return await self._aside(lambda: self.classifier.describe_label(label, top).to_dict())

    def search(self, query: str, limit: int) -> list[dict[str, Any]]:
        """Labels that hold the words of a query; those that begin with it come first, then frequent ones."""
        classifier, folded, _ = self._now
        whole = query.casefold().strip()
        words = whole.split()
        counts = classifier.label_counts_
        ranked = sorted(
            (not name.startswith(whole), 0 if counts is None else -int(counts[i]), i)
            for i, name in enumerate(folded)
            if all(word in name for word in words)
        )
        return [
            {"label": classifier.label_names_[i], "rows": None if counts is None else int(counts[i])}
            for _, _, i in ranked[:limit]
        ]

    async def _aside(self, function: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        return await asyncio.get_running_loop().run_in_executor(self._explaining, function)

    def close(self) -> None:
        """End the threads when what they work on is done."""
        self._predicting.shutdown()
        self._explaining.shutdown()


class Models:
    """All models of a server by name."""

    def __init__(self, settings: Settings, observe: Callable[[int], Any]) -> None:
        self.by_name = {
            name: ServedModel(name, folder, settings, observe) for name, folder in settings.models.items()
        }

    async def watch(self) -> None:
        """Look for replaced folders until cancelled."""
        while True:
            await asyncio.sleep(POLL)
            for model in self.by_name.values():
                await model.refresh()

    def close(self) -> None:
        for model in self.by_name.values():
            model.close()
