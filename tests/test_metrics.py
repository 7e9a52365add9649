"""Metrics against the reference, their input forms, edge cases, and the peers."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import scipy.sparse as sp

from reference import metrics as ref
from xmc_fast import metrics, propensity

INSTANCE = ["precision", "recall", "ndcg", "hamming_loss", "subset_zero_one_loss", "abandonment"]
AVERAGED = ["micro_precision", "micro_recall", "micro_f1", "sample_precision", "sample_f1"]
SCORED = ["psp", "psp_unnormalized", "psndcg", "psndcg_unnormalized"]
MACRO = ["macro_precision", "macro_recall", "macro_fbeta", "coverage", "macro_balanced_accuracy"]
MACRO += ["macro_gmean", "macro_jaccard"]
CALLS = {
    "precision": metrics.precision_at_k,
    "recall": metrics.recall_at_k,
    "ndcg": metrics.ndcg_at_k,
    "hamming_loss": metrics.hamming_loss_at_k,
    "subset_zero_one_loss": metrics.subset_zero_one_loss_at_k,
    "abandonment": metrics.abandonment_at_k,
    "macro_precision": metrics.macro_precision_at_k,
    "macro_recall": metrics.macro_recall_at_k,
    "macro_fbeta": metrics.macro_f1_at_k,
    "coverage": metrics.coverage_at_k,
    "macro_balanced_accuracy": metrics.macro_balanced_accuracy_at_k,
    "macro_gmean": metrics.macro_gmean_at_k,
    "macro_jaccard": metrics.macro_jaccard_at_k,
}


def problem(n=200, n_labels=40, m=6, seed=0):
    """Truth with empty rows, rows of more than 32 labels and labels never positive; ids with many hits."""
    rng = np.random.default_rng(seed)
    Y = rng.random((n, n_labels)) < rng.uniform(0, 0.2, n_labels)
    Y[::5] = False
    Y[1::50] = True
    Y[:, ::7] = False
    scores = rng.random((n, n_labels)) + 0.7 * Y
    ids = np.argsort(-scores, axis=1, kind="stable")[:, :m]
    return Y, ids


def sets(Y):
    return [set(np.flatnonzero(row).tolist()) for row in np.asarray(Y)]


def quiet_report(*args, **kwargs):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", propensity.PropensityWarning)
        return metrics.report(*args, **kwargs)


def expected(Y, lists, k, q=None, beta=1.0, labels=None):
    n_labels = np.shape(Y)[1]
    found = ref.instance(sets(Y), lists, k, q, n_labels) | ref.macro(
        sets(Y), lists, k, n_labels, beta, labels
    )
    found["macro_f1"] = found["macro_fbeta"]
    return found


@pytest.mark.parametrize("n", [1, 2, 200, 4095, 4096, 4097])
def test_every_metric_equals_the_reference(n):
    Y, ids = problem(n)
    p = np.random.default_rng(1).uniform(0.05, 1, Y.shape[1])
    r = quiet_report(sp.csr_matrix(Y), ids, (1, 3, 5, 6, 9), propensity=p)
    assert r.ks == (1, 3, 5, 6, 9)
    for k in r.ks:
        want = expected(Y, ids.tolist(), k, 1 / p)
        for name in r.values:
            np.testing.assert_allclose(
                r[f"{name}@{k}"], want[name], rtol=0, atol=1e-12, err_msg=f"{name}@{k}"
            )
    assert set(r.values) == {*INSTANCE, *AVERAGED, *SCORED, *MACRO, "macro_f1"} - {"macro_fbeta"}


def test_single_functions_equal_the_report():
    Y, ids = problem()
    p = np.random.default_rng(1).uniform(0.6, 1, Y.shape[1])
    r = quiet_report(Y, ids, (1, 4), propensity=p)
    for name, call in CALLS.items():
        title = "macro_f1" if name == "macro_fbeta" else name
        assert call(Y, ids, k=4) == r[f"{title}@4"]
        assert call(Y, ids, k=(4, 1)).tolist() == [r[f"{title}@4"], r[f"{title}@1"]]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", propensity.PropensityWarning)
        for name, call in {"psp": metrics.psp_at_k, "psndcg": metrics.psndcg_at_k}.items():
            assert call(Y, ids, p, k=4) == r[f"{name}@4"]
            assert call(Y, ids, p, k=4, normalize=False) == r[f"{name}_unnormalized@4"]


@pytest.mark.parametrize("beta", [0.5, 2.0])
def test_fbeta(beta):
    Y, ids = problem()
    want = ref.macro(sets(Y), ids.tolist(), 3, Y.shape[1], beta)["macro_fbeta"]
    assert metrics.macro_fbeta_at_k(Y, ids, k=3, beta=beta) == pytest.approx(want, abs=1e-12)
    assert metrics.report(Y, ids, k=3, beta=beta)["macro_fbeta@3"] == pytest.approx(want, abs=1e-12)


def test_labels_with_positives_only():
    Y, ids = problem()
    positive = np.flatnonzero(Y.any(axis=0))
    assert len(positive) < Y.shape[1]
    want = expected(Y, ids.tolist(), 3, labels=positive)
    for name in MACRO:
        got = CALLS[name](Y, ids, k=3, labels="positive")
        assert got == pytest.approx(want[name], abs=1e-12)
        if name != "macro_balanced_accuracy":
            assert got > CALLS[name](Y, ids, k=3), "labels without positives count 0 by default"


def test_label_counts():
    Y, ids = problem()
    got = metrics.label_counts_at_k(Y, ids, k=(5, 2))
    for column, k in enumerate((5, 2)):
        tp, predicted, positives = ref.counts(sets(Y), ids.tolist(), k, Y.shape[1])
        assert got.true_positives[:, column].tolist() == tp.tolist()
        assert got.predicted[:, column].tolist() == predicted.tolist()
        assert got.positives.tolist() == positives.tolist()


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, np.int16])
def test_csr_scores_rank_by_score_then_id(dtype):
    rng = np.random.default_rng(3)
    Y, _ = problem(60, 30)
    scores = rng.integers(-3, 3, (60, 30)).astype(dtype)  # many ties, stored zeros
    stored = rng.random((60, 30)) < 0.4
    stored[7] = False
    indices = [rng.permutation(np.flatnonzero(row)) for row in stored]  # any order inside a row
    indptr = np.concatenate(([0], np.cumsum([len(i) for i in indices])))
    columns = np.concatenate(indices)
    data = scores[np.repeat(np.arange(60), np.diff(indptr)), columns]
    lists = [ref.top_k(scores[i].astype(float), indices[i]) for i in range(60)]
    got = metrics.report(Y, sp.csr_matrix((data, columns, indptr), shape=(60, 30)), k=(1, 3, 40))
    for k in got.ks:
        want = expected(Y, lists, k)
        for name in got.values:
            assert got[f"{name}@{k}"] == pytest.approx(want[name], abs=1e-12), name


@pytest.mark.parametrize("dtype", [np.float32, np.float64, bool])
def test_dense_scores(dtype):
    rng = np.random.default_rng(4)
    Y, _ = problem(50, 30)
    scores = rng.integers(-2, 3, (50, 30)).astype(dtype)
    if dtype is not bool:
        scores[3] = np.nan
        scores[4, ::2] = np.nan
        scores[5, 3] = np.inf
    lists = [ref.top_k(row.astype(float)) for row in scores]
    for array in (scores, np.asfortranarray(scores)):
        got = metrics.report(Y, array, k=(1, 5, 30, 31))
        for k in got.ks:
            want = expected(Y, lists, k)
            for name in got.values:
                assert got[f"{name}@{k}"] == pytest.approx(want[name], abs=1e-12), name


@pytest.mark.parametrize("form", ["ids", "csr", "dense"])
def test_label_filter_ignores_pairs_on_both_sides(form):
    Y, _ = problem(80, 25)
    rng = np.random.default_rng(5)
    scores = rng.random(Y.shape)
    banned = rng.random(Y.shape) < 0.2
    lists = [[j for j in ref.top_k(s) if not b[j]] for s, b in zip(scores, banned, strict=True)]
    pred = {"ids": np.argsort(-scores, axis=1), "csr": sp.csr_matrix(scores), "dense": scores}[form]
    want = expected(Y & ~banned, lists, 4)
    for label_filter in (sp.csr_matrix(banned), np.argwhere(banned)):
        got = metrics.report(Y, pred, k=4, label_filter=label_filter)
        for name in got.values:
            assert got[f"{name}@4"] == pytest.approx(want[name], abs=1e-12), name
    assert metrics.precision_at_k(Y, pred, label_filter=np.empty((0, 2))) == metrics.precision_at_k(Y, pred)


def test_bins():
    Y, ids = problem(300, 60)
    p = np.random.default_rng(1).uniform(0.5, 1, 60)
    freq = np.random.default_rng(2).integers(0, 100, 60)
    bins = metrics.frequency_bins(freq)
    r = quiet_report(Y, ids, (2, 5), propensity=p, bins=freq)
    assert list(r.bins) == ["tail (<=5)", "torso (6-50)", "head (>50)"]
    for number, (_, values) in enumerate(r.bins.items()):
        members = np.flatnonzero(bins.group == number)
        inside = np.isin(np.arange(60), members)
        Yb = Y & inside
        relative = ref.instance(sets(Yb), ids.tolist(), 5, 1 / p, rows=int(Yb.any(axis=1).sum()))
        whole = ref.instance(sets(Yb), ids.tolist(), 5, 1 / p)
        sets_only = ref.instance(
            sets(Yb), [[j for j in row[:5] if inside[j]] for row in ids.tolist()], 5, n_labels=len(members)
        )
        labelled = Yb.any(axis=1)
        want = ref.macro(sets(Y), ids.tolist(), 5, 60, labels=members)
        want["macro_f1"] = want["macro_fbeta"]
        want |= {n: relative[n] for n in ("recall", "ndcg", "psndcg_unnormalized")}
        want |= {n: whole[n] for n in ("precision", "psp", "psp_unnormalized", "psndcg")}
        want |= {n: sets_only[n] for n in ("hamming_loss", "subset_zero_one_loss", *AVERAGED)}
        want["sample_f1"] /= labelled.mean()
        hit = [bool(y & set(row[:5])) for y, row in zip(sets(Yb), ids.tolist(), strict=True)]
        want["abandonment"] = 1 - np.mean(np.array(hit)[labelled])
        for name in values:
            assert values[name][1] == pytest.approx(want[name], abs=1e-12), name
    for name in ("precision", "psp_unnormalized"):
        total = sum(values[name] for values in r.bins.values())
        np.testing.assert_allclose(total, r[name], atol=1e-12)


def test_bins_from_training_labels_and_own_groups():
    Y, ids = problem()
    a = metrics.report(Y, ids, bins=sp.csr_matrix(Y))
    b = metrics.report(Y, ids, bins=Y.sum(axis=0))
    assert a.to_dict() == b.to_dict()
    own = metrics.LabelBins(("mine",), np.where(np.arange(40) < 3, 0, -1))
    values = metrics.report(Y, ids, k=5, bins=own).bins["mine"]
    assert values["macro_recall"][0] == pytest.approx(
        ref.macro(sets(Y), ids.tolist(), 5, 40, labels=range(3))["macro_recall"]
    )
    assert metrics.frequency_bins([1, 2, 3, 4], (1, 2, 3)).names == ("<=1", "2-2", "3-3", ">3")
    one_row = sp.csr_matrix([[1.0, 7.0, 1000.0]]).sum(axis=0)  # a numpy matrix of one row
    assert metrics.frequency_bins(one_row).group.tolist() == [0, 1, 2]


def test_bootstrap_intervals_cover_at_the_nominal_rate():
    rng = np.random.default_rng(0)
    truth, covered = 0.3, 0
    for trial in range(50):
        Y = (rng.random((150, 1)) < truth).astype(int)
        r = metrics.report(Y, np.zeros((150, 1), int), 1, bootstrap=40, level=0.9, random_state=trial)
        low, high = r.intervals["precision"][:, 0]
        covered += low <= truth <= high
    assert 39 <= covered <= 49, covered  # 45 expected, standard deviation 2.1


def test_bootstrap_equals_resampled_data():
    Y, ids = problem(50)
    freq = Y.sum(axis=0)
    r = metrics.report(Y, ids, (1, 3), bins=freq, bootstrap=5, level=0.5, random_state=7)
    rng = np.random.default_rng(7)
    draws = []
    for _ in range(5):
        rows = rng.integers(0, 50, 50)
        draws.append(metrics.report(Y[rows], ids[rows], (1, 3), bins=freq))
    groups = rng.permutation(50) % 5
    rests = [metrics.report(Y[groups != g], ids[groups != g], (1, 3), bins=freq) for g in range(5)]

    def interval(estimate, of):
        samples, without = np.array([of(d) for d in draws]), np.array([of(d) for d in rests])
        low, high = np.sort(samples, axis=0)[[0, 3]]  # 1/4 and 3/4 of 6 gaps: places 1.5 and 4.5 of 1..5
        low, high = (low + np.sort(samples, axis=0)[1]) / 2, (high + np.sort(samples, axis=0)[4]) / 2
        jackknife = np.sqrt(4 / 5 * np.sum((without - without.mean(axis=0)) ** 2, axis=0))
        spread = samples.std(axis=0)
        stretch = np.where(spread > 0, np.maximum(jackknife / np.where(spread > 0, spread, 1), 1), 1)
        low, high = (estimate + (end - samples.mean(axis=0)) * stretch for end in (low, high))
        low, high = np.minimum(low, estimate).clip(0), np.maximum(high, estimate).clip(max=1)
        low = np.where((spread == 0) & (estimate == 1), 0.25 ** (1 / 50), low)
        return low, np.where((spread == 0) & (estimate == 0), 1 - 0.25 ** (1 / 50), high)

    for name in r.values:
        want = interval(r[name], lambda d, name=name: d[name])
        np.testing.assert_allclose(r.intervals[name], want, atol=1e-12)
        for b in r.bins:
            want = interval(r.bins[b][name], lambda d, name=name, b=b: d.bins[b][name])
            np.testing.assert_allclose(r.bin_intervals[b][name], want, atol=1e-12)
    assert "[" in str(r)


def test_same_bits_for_any_number_of_threads():
    Y, ids = problem(9000, 70000 // 100)
    p = np.random.default_rng(1).uniform(0.1, 1, Y.shape[1])
    wide = sp.hstack([sp.csr_matrix(Y), sp.csr_matrix((9000, 70000))]).tocsr()
    p = np.concatenate([p, np.ones(70000)])
    one = quiet_report(wide, ids, propensity=p, n_jobs=1).to_dict()
    for n_jobs in (2, 3, 7):
        assert quiet_report(wide, ids, propensity=p, n_jobs=n_jobs).to_dict() == one


def test_no_rows_no_labels_no_lists():
    r = metrics.report(sp.csr_matrix((0, 5)), np.empty((0, 3), int), bootstrap=3, bins=np.zeros(5))
    assert all(np.all(v == 0) for v in r.values.values())
    r = metrics.report(sp.csr_matrix((4, 5)), np.empty((4, 0), int))
    assert r["precision@5"] == 0
    assert r["abandonment@5"] == 1
    assert r["subset_zero_one_loss@5"] == 0
    assert r["macro_balanced_accuracy@5"] == 0.5
    r = metrics.report(sp.csr_matrix((4, 0)), sp.csr_matrix((4, 0)))
    assert r["macro_f1@5"] == 0
    everything = np.ones((3, 1), int)  # no negatives: the true negative rate is 0/0
    assert metrics.macro_balanced_accuracy_at_k(everything, np.zeros((3, 1), int), k=1) == 0.5


@pytest.mark.parametrize("k", [0, -1, (), (1, 0), 1.5, "5", None])
def test_k_is_checked(k):
    with pytest.raises(ValueError, match="k must be a positive integer"):
        metrics.precision_at_k(np.eye(3), np.zeros((3, 1), int), k=k)


def test_duplicates_are_refused():
    Y = np.eye(40)[:3]
    for width in (2, 16, 17, 40):
        ids = np.tile(np.arange(width)[::-1], (3, 1))
        metrics.precision_at_k(Y, ids)
        ids[1, -1] = ids[1, 0]
        with pytest.raises(ValueError, match=f"label {width - 1} occurs twice in row 1 of the predictions"):
            metrics.precision_at_k(Y, ids)
    twice = sp.csr_matrix((np.ones(3), np.array([4, 2, 4]), np.array([0, 0, 3, 3])), shape=(3, 40))
    with pytest.raises(ValueError, match="label 4 occurs twice in row 1"):
        metrics.precision_at_k(Y, twice)


@pytest.mark.parametrize("bad", [-1, 4, 2**32, 2**40])
def test_ids_out_of_range_are_refused(bad):
    ids = np.array([[0, 1], [2, bad]])
    with pytest.raises(ValueError, match=rf"label ids must be in \[0, 4\), got {bad} in row 1"):
        metrics.precision_at_k(np.ones((2, 4)), ids)


@pytest.mark.parametrize(
    ("pred", "message"),
    [
        (np.zeros((3, 2), int), "pred has 3 rows, Y_true has 2"),
        (sp.csr_matrix((2, 5)), r"pred has shape \(2, 5\), Y_true has \(2, 4\)"),
        (
            np.zeros((2, 3)),
            r"pred has shape \(2, 3\), Y_true has \(2, 4\): pass n_labels=4",
        ),
        (np.zeros(2, int), "pred must be two-dimensional"),
        (np.array([["a"], ["b"]]), "pred must hold label ids"),
    ],
)
def test_wrong_predictions_are_refused(pred, message):
    with pytest.raises(ValueError, match=message):
        metrics.report(np.ones((2, 4)), pred)


def test_wrong_options_are_refused():
    Y, ids = problem(10)
    for options, message in [
        ({"labels": "some"}, "labels must be"),
        ({"propensity": [1.0, 0.5]}, r"propensity has shape \(2,\), expected \(40,\)"),
        ({"propensity": np.zeros(40)}, r"propensity must be in \(0, 1\]"),
        ({"propensity": np.full(40, np.nan)}, "propensity must be finite, got nan"),
        ({"bins": np.zeros(3)}, "bins has shape"),
        ({"bootstrap": -1}, "bootstrap must be"),
        ({"metrics": ["psp"]}, "PSP and PSnDCG need propensity"),
        ({"label_filter": np.array([[0, 40]])}, r"label_filter's labels must be in \[0, 40\)"),
        ({"label_filter": np.array([1, 2])}, "label_filter must be"),
        ({"label_filter": sp.csr_matrix((10, 3))}, "label_filter has 3 columns"),
    ]:
        with pytest.raises(ValueError, match=message):
            metrics.report(Y, ids, **options)
    with pytest.raises(KeyError, match="metrics are precision"):
        metrics.report(Y, ids)["accuracy"]


def test_the_callers_arrays_stay():
    Y = sp.csr_matrix(np.eye(3)[:, ::-1])
    pred = sp.csr_matrix((np.array([1.0, 2.0]), np.array([2, 0]), np.array([0, 2, 2, 2])), shape=(3, 3))
    before = [a.copy() for m in (Y, pred) for a in (m.data, m.indices, m.indptr)]
    metrics.report(Y, pred, label_filter=[(0, 1)])
    after = [a for m in (Y, pred) for a in (m.data, m.indices, m.indptr)]
    assert all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))


def test_tables():
    Y, ids = problem()
    r = metrics.report(Y, ids, (1, 3), bins=Y.sum(axis=0), metrics=["macro_f1", "precision"])
    text = str(r)
    assert text.splitlines()[0].split() == ["metric", "(%)", "@1", "@3"]
    assert text.splitlines()[2].split() == [
        "P",
        f"{100 * r['precision@1']:.2f}",
        f"{100 * r['precision@3']:.2f}",
    ]
    assert "200 rows, 40 labels; macro metrics average over all labels; 0/0 = 0" in text
    lines = r.to_markdown().splitlines()
    assert lines[:2] == ["| metric (%) | @1 | @3 |", "|---|---:|---:|"]
    assert any(line.startswith("| metric@3 (%) | tail (<=5) |") for line in lines)
    d = r.to_dict()
    assert d["metrics"]["macro_f1"] == {1: r["macro_f1@1"], 3: r["macro_f1@3"]}
    assert d["bins"]["tail (<=5)"]["precision"][3] == r.bins["tail (<=5)"]["precision"][1]


def test_plots():
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("agg")
    from matplotlib import pyplot

    from xmc_fast.plots import plot_estimates, plot_propensity

    Y, ids = problem()
    r = metrics.report(Y, ids, (1, 3), bootstrap=4)
    ax = r.plot(["precision", "macro_f1"])
    assert [round(bar.get_height(), 9) for bar in ax.patches] == [
        round(100 * r[f"{m}@{k}"], 9) for k in (1, 3) for m in ("precision", "macro_f1")
    ]
    assert [t.get_text() for t in ax.get_xticklabels()] == ["P", "macro-F1"]
    by_bin = metrics.report(Y, ids, (1, 3), bins=Y.sum(axis=0), bootstrap=4)
    heights = [bar.get_height() for bar in by_bin.plot(["recall"]).patches]
    np.testing.assert_allclose(heights, [100 * v["recall"][1] for v in by_bin.bins.values()])
    with pytest.raises(ValueError, match="metrics must be among"):
        r.plot(["accuracy"])
    p = propensity.estimate(Y)
    ax = plot_propensity(Y, propensity=p)
    counts = np.asarray(Y.sum(axis=0)).ravel()
    assert {*zip(*ax.lines[0].get_data(), strict=True)} == {*zip(np.maximum(counts, 0.5), p, strict=True)}
    assert [line.get_label() for line in ax.lines] == ["given", "JPV wikipedia", "JPV amazon", "JPV default"]
    ax = plot_estimates([0.5, 1.0], {"a": np.array([[0.0, 1.0], [2.0, 2.0]])}, 2.0)
    assert ax.lines[1].get_ydata().tolist() == [0.5, 2.0]
    pyplot.close("all")
