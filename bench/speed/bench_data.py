"""Reading sparse text and tf-idf beside the peers: ``python -m bench.speed.bench_data [read] [tfidf] [choices]``.

Reading: eurlex-4k repeated to more than 100 MB, from the page cache, by ours (one thread, two threads),
scikit-learn's load_svmlight_file and napkinxc's C++ loader. One-thread figures are CPU time; ``ratio`` is the
peer's time by ours, and for the wall-clock rows the speed-up over one thread, which means something only if
a second core was idle.

tf-idf: sublinear tf, smooth idf, l2, min_df=2, by ours, scikit-learn and PECOS (which splits at white
space and keeps the case: other columns, so only its time is compared); MB of UTF-8 text.

choices: what the vectorizer can do (word pairs, character n-grams, stop words, accents, hashing), each with the
same option of scikit-learn on 4 MB of debtags and of tibkat-gnd, fit and transform in one call, one thread, CPU time.
"""

from __future__ import annotations

import lzma
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bench.common import CACHE, Table, arguments, data_dir, interleave
from xmc_fast import data
from xmc_fast.text import TfidfVectorizer

MEGABYTES = 110


def big_file(megabytes: int = MEGABYTES) -> Path:
    """eurlex-4k's training set repeated to at least that size, cached."""
    path = CACHE / f"eurlex-4k_{megabytes}MB.txt"
    if not path.exists():
        with lzma.open(data_dir("eurlex-4k") / "train.txt.xz") as file:
            header, body = file.read().split(b"\n", 1)
        points, features, labels = map(int, header.split())
        times = megabytes * 1_000_000 // len(body) + 1
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"%d %d %d\n" % (points * times, features, labels) + body * times)
    return path


def sklearn_reader(path: Path) -> Callable[[], Any]:
    from sklearn.datasets import load_svmlight_file

    def read() -> Any:
        with open(path, "rb") as file:
            n_features = int(file.readline().split()[1])
            X, _ = load_svmlight_file(
                file, n_features=n_features, multilabel=True, zero_based=True, dtype=np.float32
            )
        return X

    return read


def napkinxc_reader(path: Path) -> Callable[[], Any] | None:
    try:
        from napkinxc.datasets import load_libsvm_file
    except ImportError:
        return None
    return lambda: load_libsvm_file(str(path), labels_format="csr_matrix")[0]


def same(A: Any, B: Any) -> bool:
    """Equal matrices up to the last bit of values that a peer rounds twice."""
    columns = min(A.shape[1], B.shape[1])
    difference = abs(A[:, :columns] - B[:, :columns])
    return A.shape[0] == B.shape[0] and A.nnz == B.nnz and difference.max() <= 1e-6 * abs(A).max()


def bench_read() -> Table:
    table = Table("data_read", ["reader", "threads", "clock", "seconds", "mb_per_s", "ratio"])
    path = big_file()
    size = path.stat().st_size / 1e6
    cases: dict[str, Callable[[], Any]] = {"xmc_fast": lambda: data.read_xmc(path, n_jobs=1).X}
    cases["scikit-learn"] = sklearn_reader(path)
    peer = napkinxc_reader(path)
    if peer is not None:
        cases["napkinxc"] = peer
    ours = cases["xmc_fast"]()
    for name, read in cases.items():
        if not same(ours, read()):
            raise AssertionError(f"{name} reads something else")
    seconds = interleave(cases, rounds=5, clock=time.process_time, warm_up=False, budget=90)
    for name, s in seconds.items():
        ratio = s / seconds["xmc_fast"]
        table.add(reader=name, threads=1, clock="cpu", seconds=s, mb_per_s=size / s, ratio=ratio)
    threads = {f"{t}": lambda t=t: data.read_xmc(path, n_jobs=t) for t in (1, 2)}
    walls = interleave(threads, rounds=9, budget=30)
    for t, s in walls.items():
        ratio = walls["1"] / s
        table.add(reader="xmc_fast", threads=int(t), clock="wall", seconds=s, mb_per_s=size / s, ratio=ratio)
    return table


def corpus(name: str, most: int = 30_000_000) -> list[str]:
    """Texts of a real data set, up to so many bytes."""
    texts = data.read_text(data_dir(name) / "train_texts.txt.xz").texts
    sizes = np.cumsum([len(text.encode()) for text in texts])
    return texts[: int(np.searchsorted(sizes, most))]


def pecos_vectorizer(texts: list[str]) -> dict[str, Callable[[], Any]]:
    try:
        from pecos.utils.featurization.text.vectorizers import Tfidf
    except ImportError:
        return {}
    config = {"sublinear_tf": True, "smooth_idf": True, "min_df_cnt": 2, "threads": 1}
    fitted = Tfidf.train(texts, config)
    return {
        "fit_transform": lambda: Tfidf.train(texts, config).predict(texts, threads=1),
        "transform": lambda: fitted.predict(texts, threads=1),
    }


def bench_tfidf() -> Table:
    columns = ["texts", "mb", "step", "vectorizer", "threads", "clock", "seconds", "mb_per_s", "ratio"]
    table = Table("data_tfidf", columns)
    for name in ("debtags", "eurlex57k", "tibkat-gnd"):
        bench_corpus(table, name, corpus(name))
    return table


def bench_corpus(table: Table, name: str, texts: list[str]) -> None:
    from sklearn.feature_extraction.text import TfidfVectorizer as Sklearn

    options: dict[str, Any] = {"sublinear_tf": True, "min_df": 2}
    size = sum(len(text.encode()) for text in texts) / 1e6
    ours = {t: TfidfVectorizer(**options, n_jobs=t).fit(texts) for t in (1, 2)}
    peer = Sklearn(**options, dtype=np.float32)
    A, B = ours[1].fit_transform(texts), peer.fit_transform(texts)
    if list(ours[1].get_feature_names_out()) != list(peer.get_feature_names_out()) or abs(A - B).max() > 1e-6:
        raise AssertionError(f"{name}: ours and scikit-learn differ")
    pecos = pecos_vectorizer(texts)
    for step in ("fit_transform", "transform"):
        cases = {
            "xmc_fast": partial(getattr(ours[1], step), texts),
            "scikit-learn": partial(getattr(peer, step), texts),
        }
        if pecos:
            cases["pecos"] = pecos[step]
        walls = {str(t): partial(getattr(v, step), texts) for t, v in ours.items()}
        cpu = interleave(cases, rounds=3, clock=time.process_time, warm_up=False, budget=60)
        wall = interleave(walls, rounds=5, warm_up=False, budget=20)
        rows = [(case, 1, "cpu", s, s / cpu["xmc_fast"]) for case, s in cpu.items()]
        rows += [("xmc_fast", int(t), "wall", s, wall["1"] / s) for t, s in wall.items()]
        for case, threads, clock, s, ratio in rows:
            table.add(
                texts=name,
                mb=size,
                step=step,
                vectorizer=case,
                threads=threads,
                clock=clock,
                seconds=s,
                mb_per_s=size / s,
                ratio=ratio,
            )


CHOICES: dict[str, dict[str, Any]] = {
    "words": {},
    "word pairs": {"ngram_range": (1, 2)},
    "characters 3 to 5": {"analyzer": "char", "ngram_range": (3, 5)},
    "characters 2 to 4 in words": {"analyzer": "char_wb", "ngram_range": (2, 4)},
    "stop words": {"stop_words": "english"},
    "accents": {"strip_accents": "unicode"},
    "min_df 5": {"min_df": 5},
    "hashing 2^18": {"n_features": 2**18},
    "hashing 2^20": {"n_features": 2**20},
    "hashing 2^20, idf": {"n_features": 2**20, "use_idf": True},
    "hashing 2^20, word pairs": {"n_features": 2**20, "ngram_range": (1, 2)},
    "hashing 2^20, characters 3 to 5": {"n_features": 2**20, "analyzer": "char", "ngram_range": (3, 5)},
}


def choice_peer(options: dict[str, Any]) -> Any:
    """scikit-learn's vectorizer of these options."""
    from sklearn.feature_extraction.text import HashingVectorizer, TfidfTransformer
    from sklearn.feature_extraction.text import TfidfVectorizer as Sklearn
    from sklearn.pipeline import make_pipeline

    if "n_features" not in options:
        return Sklearn(**options, dtype=np.float32)
    use_idf = options.get("use_idf", False)
    hashed = {name: value for name, value in options.items() if name != "use_idf"}
    norm = None if use_idf else "l2"
    first = HashingVectorizer(**hashed, norm=norm, alternate_sign=False, dtype=np.float32)
    return make_pipeline(first, TfidfTransformer()) if use_idf else first


def bench_choices() -> Table:
    table = Table("data_choices", ["texts", "choice", "seconds", "scikit-learn", "ratio"])
    for name in ("debtags", "tibkat-gnd"):
        texts = corpus(name, 4_000_000)
        for choice, options in CHOICES.items():
            mine = {"use_idf": False} | options if "n_features" in options else options
            ours, peer = TfidfVectorizer(**mine, n_jobs=1), choice_peer(options)
            cases = {"ours": partial(ours.fit_transform, texts), "peer": partial(peer.fit_transform, texts)}
            if abs(cases["ours"]() - cases["peer"]()).max() > 1e-6:
                raise AssertionError(f"{name}, {choice}: ours and scikit-learn differ")
            cpu = interleave(cases, rounds=5, clock=time.process_time, warm_up=False, budget=60)
            values = {"seconds": cpu["ours"], "scikit-learn": cpu["peer"], "ratio": cpu["peer"] / cpu["ours"]}
            table.add(texts=name, choice=choice, **values)
            print(table.rows[-1], flush=True)
    return table


BENCHES = {"read": bench_read, "tfidf": bench_tfidf, "choices": bench_choices}


def main() -> None:
    for part in arguments(__doc__, list(BENCHES)):
        table = BENCHES[part]()
        print(table)
        table.save()


if __name__ == "__main__":
    main()
