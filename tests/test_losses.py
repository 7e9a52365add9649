"""Losses against the reference, unbiasedness by enumeration and by sampling, gradients, short lists."""

from __future__ import annotations

import itertools
import warnings

import numpy as np
import pytest

from reference import losses as ref
from xmc_fast import propensity

pytestmark = pytest.mark.usefixtures("one_torch_thread")

torch = pytest.importorskip("torch")
losses = pytest.importorskip("xmc_fast.nn.losses")
MultilabelLoss, SampledEstimateWarning = losses.MultilabelLoss, losses.SampledEstimateWarning
binary_losses, unbiased_estimate = losses.binary_losses, losses.unbiased_estimate
unbiased_targets, upper_bound_targets = losses.unbiased_targets, losses.upper_bound_targets

PAIRS = [
    *itertools.product(["bce", "squared_hinge"], ["ova", "pal", "ova_n", "pal_n"]),
    ("softmax", "pal"),
    ("softmax", "pal_n"),
]
FORMS = [(b, r, "none") for b, r in PAIRS] + [(b, r, "unbiased") for b, r in PAIRS]
FORMS += [(b, "ova", "surrogate") for b in ("bce", "squared_hinge")]
FORMS += [(b, "pal_n", "upper_bound") for b in ("bce", "squared_hinge", "softmax")]


def case(rows=7, n_labels=5, seed=0):
    rng = np.random.default_rng(seed)
    s = rng.normal(0, 1.5, (rows, n_labels))
    y = (rng.random((rows, n_labels)) < 0.5).astype(float)
    y[0], y[1] = 0, 1
    return s, y, rng.uniform(0.3, 1.0, n_labels)


def build(base, reduction, correction, p, **options):
    return MultilabelLoss(
        base, reduction, correction=correction, propensity=p, allow_unbounded=True, batch="none", **options
    )


def value(loss, s, y, *more):
    return loss(torch.as_tensor(s), torch.as_tensor(y), *more).numpy()


@pytest.mark.parametrize(("base", "reduction"), PAIRS)
def test_uncorrected_equals_the_reference(base, reduction):
    s, y, _ = case()
    want = [ref.clean(base, reduction, a, b) for a, b in zip(s, y, strict=True)]
    got = value(build(base, reduction, "none", None), s, y)
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-12)
    for batch, join in (("mean", np.mean), ("sum", np.sum)):
        total = MultilabelLoss(base, reduction, batch=batch)(torch.as_tensor(s), torch.as_tensor(y))
        np.testing.assert_allclose(total.item(), join(want), atol=1e-12)


@pytest.mark.parametrize(("base", "reduction"), PAIRS)
def test_unbiased_by_enumeration_of_all_masks(base, reduction):
    s, y, p = case()
    loss = build(base, reduction, "unbiased", p)
    for scores, complete in zip(s, y, strict=True):
        seen, chance = zip(*ref.masks(complete, p), strict=True)
        values = value(loss, np.tile(scores, (len(seen), 1)), np.array(seen))
        np.testing.assert_allclose(
            np.dot(chance, values), ref.clean(base, reduction, scores, complete), atol=1e-10
        )
        # the same estimator as the sum over all subsets, mask by mask: it is unique
        for observed, got in zip(seen, values, strict=True):
            want = ref.general(lambda sub, sc=scores: ref.clean(base, reduction, sc, sub), observed, p)
            np.testing.assert_allclose(got, want, atol=1e-9)


@pytest.mark.parametrize(("base", "reduction"), PAIRS)
def test_unbiased_by_sampling_masks(base, reduction):
    s, y, p = case(seed=3)
    rng = np.random.default_rng(1)
    draws = 20_000
    scores, complete = s[2], y[1]
    observed = complete * (rng.random((draws, len(p))) < p)
    values = value(build(base, reduction, "unbiased", p), np.tile(scores, (draws, 1)), observed)
    error = values.std(ddof=1) / np.sqrt(draws)
    assert abs(values.mean() - ref.clean(base, reduction, scores, complete)) < 4 * error
    plain = value(build(base, reduction, "none", None), np.tile(scores, (draws, 1)), observed)
    assert abs(plain.mean() - ref.clean(base, reduction, scores, complete)) > 4 * error, "the bias it removes"


@pytest.mark.parametrize("rows", [0, 1, 3])
def test_normalised_targets_for_any_number_of_positives(rows):
    p = np.linspace(0.5, 1, 9)
    y = np.tril(np.ones((9, 9)))[:rows] if rows else np.zeros((0, 9))
    got = unbiased_targets(torch.as_tensor(y), torch.as_tensor(p), normalized=True)
    assert got.shape == y.shape
    for row, observed in zip(got.numpy(), y, strict=True):
        for j in range(9):
            want = ref.general(lambda sub, j=j: sub[j] / max(sub.sum(), 1), observed, p)
            np.testing.assert_allclose(row[j], want, atol=1e-10)
    full = unbiased_targets(torch.ones(1, 9).double(), torch.as_tensor(p), normalized=True)
    want = ref.general(lambda sub: sub[4] / max(sub.sum(), 1), np.ones(9), p)
    np.testing.assert_allclose(full[0, 4].item(), want, rtol=1e-9)
    assert torch.equal(unbiased_targets(torch.zeros(2, 9), torch.ones(9), normalized=True), torch.zeros(2, 9))


def test_upper_bound_is_above_in_the_mean_and_never_negative():
    _, y, p = case()
    for complete in y[1:]:
        seen, chance = zip(*ref.masks(complete, p), strict=True)
        bound = upper_bound_targets(torch.as_tensor(np.array(seen)), torch.as_tensor(p)).numpy()
        assert bound.min() >= 0
        assert np.all(np.dot(chance, bound) >= complete / complete.sum() - 1e-12)
    ratio = np.array([1, 0, 1, 1, 0]) / p
    want = ratio / (1 + ratio.sum() - ratio)
    got = upper_bound_targets(torch.tensor([[1.0, 0, 1, 1, 0]]).double(), torch.as_tensor(p))
    np.testing.assert_allclose(got[0].numpy(), want, atol=1e-14)


@pytest.mark.parametrize("base", ["bce", "squared_hinge"])
def test_surrogate_weights_positives(base):
    s, y, p = case()
    balance = np.linspace(0.5, 2, len(p))
    for weight, normalize in itertools.product([None, balance], [False, True]):
        w = (2 / p - 1) * (1 if weight is None else weight)
        w = w / w.mean() if normalize else w
        want = [
            sum(
                w[j] * ref.binary(base, a[j], 1) if b[j] else ref.binary(base, a[j], 0) for j in range(len(p))
            )
            for a, b in zip(s, y, strict=True)
        ]
        loss = build(base, "ova", "surrogate", p, positive_weight=weight, normalize_weights=normalize)
        np.testing.assert_allclose(value(loss, s, y), want, atol=1e-12)
    same = MultilabelLoss(base, positive_weight=propensity.surrogate_weights(p), batch="none")
    np.testing.assert_allclose(value(same, s, y), value(build(base, "ova", "surrogate", p), s, y), atol=1e-12)


def test_surrogate_is_convex_and_bounds_the_unbiased_zero_one_loss():
    p = 0.4
    s = torch.linspace(-6, 6, 401).double()[:, None]
    y = torch.ones_like(s)
    # the unbiased 0-1 loss of an observed positive, shifted so that a right answer costs 0
    wrong, right = (1 + (p - 1) * 0) / p, (0 + (p - 1) * 1) / p
    zero_one = torch.where(s[:, 0] < 0, wrong - right, 0.0)
    for base, scale in (("squared_hinge", 1.0), ("bce", 1 / np.log(2))):
        surrogate = scale * build(base, "ova", "surrogate", [p])(s, y)
        assert torch.all(surrogate >= zero_one - 1e-12)
        assert torch.all(surrogate.diff().diff() >= -1e-9)
        unbiased = build(base, "ova", "unbiased", [p])(s, y)
        assert unbiased.min() < -5, "what the surrogate avoids"
        assert unbiased.diff().diff().min() < -1e-6 or base == "bce"


@pytest.mark.parametrize(("base", "reduction", "correction"), FORMS)
def test_gradients(base, reduction, correction):
    s, y, p = case(rows=4)
    w = np.linspace(0.5, 1.5, len(p))
    loss = build(base, reduction, correction, p, positive_weight=w)
    logits = torch.as_tensor(s).requires_grad_()
    assert torch.autograd.gradcheck(lambda t: loss(t, torch.as_tensor(y)), (logits,))
    lists = torch.tensor([[0, 2, 4, -1], [3, 1, -1, -1], [-1, -1, -1, -1], [4, 3, 2, 1]])
    short = torch.as_tensor(s[:, :4]).requires_grad_()
    y_short = torch.as_tensor(y).gather(1, lists.clamp(min=0))
    assert torch.autograd.gradcheck(lambda t: loss(t, y_short, lists), (short,))


@pytest.mark.parametrize(("base", "reduction", "correction"), FORMS)
def test_short_lists(base, reduction, correction):
    s, y, p = case(n_labels=6)
    w = np.linspace(0.5, 1.5, len(p))
    loss = build(base, reduction, correction, p, positive_weight=w)
    rng = np.random.default_rng(0)
    every = np.array([rng.permutation(6) for _ in s])  # all labels in another order: the dense value
    shuffled = value(
        loss, np.take_along_axis(s, every, 1), np.take_along_axis(y, every, 1), torch.as_tensor(every)
    )
    np.testing.assert_allclose(shuffled, value(loss, s, y), atol=1e-12)
    keep = np.array([1, 3, 4])  # a part of the labels, with padding: the dense value of those labels
    part = build(base, reduction, correction, p[keep], positive_weight=w[keep])
    lists = torch.tensor([[4, -1, 1, 3, -5]]).expand(len(s), 5)
    pad = np.full((len(s), 1), 77.0)
    logits = np.concatenate([s[:, [4]], pad, s[:, [1, 3]], -pad], axis=1)
    targets = np.concatenate([y[:, [4]], pad > 0, y[:, [1, 3]], pad > 0], axis=1)
    np.testing.assert_allclose(
        value(loss, logits, targets, lists), value(part, s[:, keep], y[:, keep]), atol=1e-12
    )


def test_short_lists_with_positives_left_out():
    s, y, _ = case()
    got = MultilabelLoss("bce", "ova_n", batch="none")(
        torch.as_tensor(s[:, :3]), torch.as_tensor(y[:, :3]), None, torch.as_tensor(y.sum(axis=1))
    )
    positive, negative = binary_losses(torch.as_tensor(s[:, :3]), "bce")
    t = torch.as_tensor(y[:, :3] / np.maximum(y.sum(axis=1), 1)[:, None])
    np.testing.assert_allclose(got, (t * positive + (1 - t) * negative).sum(dim=1), atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("base", "reduction", "correction"), FORMS)
def test_autocast_computes_in_float32(base, reduction, correction, dtype):
    s, y, p = case()
    loss = build(base, reduction, correction, p)
    weight = torch.eye(5, requires_grad=True)
    half = torch.as_tensor(30 * s, dtype=dtype)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = loss(half, torch.as_tensor(y, dtype=torch.uint8))
        trained = loss(torch.as_tensor(s, dtype=torch.float32) @ weight, torch.as_tensor(y))
    assert got.dtype == trained.dtype == torch.float32
    want = value(loss, half.double().numpy(), y)
    np.testing.assert_allclose(got.numpy(), want, rtol=2e-5, atol=1e-5 * np.abs(want).max())
    trained.sum().backward()
    assert torch.isfinite(weight.grad).all()


@pytest.mark.parametrize("base", ["bce", "squared_hinge", "softmax"])
def test_large_logits_stay_finite(base):
    loss = MultilabelLoss(base, "pal", batch="none")
    s = torch.tensor([[1e4, -1e4, 0.0]], requires_grad=True)
    out = loss(s, torch.tensor([[0, 1, 0]]))
    out.sum().backward()
    assert torch.isfinite(out).all()
    assert torch.isfinite(s.grad).all()


@pytest.mark.parametrize(
    ("reduction", "instead"), [("ova", "surrogate"), ("pal_n", "upper_bound"), ("ova_n", "another reduction")]
)
def test_unbounded_losses_are_refused_for_training(reduction, instead):
    with pytest.raises(ValueError, match=f"no lower bound and must not be minimised.*{instead}"):
        MultilabelLoss("bce", reduction, correction="unbiased", propensity=[0.5])
    MultilabelLoss("bce", reduction, correction="unbiased", propensity=[0.5], allow_unbounded=True)
    MultilabelLoss("softmax", "pal", correction="unbiased", propensity=[0.5])  # bounded: allowed


def test_wrong_arguments_are_refused():
    for options, message in [
        ({"base": "mse"}, "base must be one of"),
        ({"base": "softmax"}, "softmax is a loss of one label"),
        ({"correction": "surrogate"}, "needs propensity"),
        ({"correction": "surrogate", "propensity": [0.0, 1]}, r"propensity must be in \(0, 1\]"),
        ({"correction": "surrogate", "propensity": 0.5}, "one value per label"),
        ({"correction": "surrogate", "propensity": [0.5], "reduction": "pal"}, "needs reduction"),
        ({"correction": "upper_bound", "propensity": [0.5]}, "pal_n"),
        ({"correction": "surrogate", "propensity": [0.5], "positive_weight": [1, 1]}, "positive_weight has"),
    ]:
        with pytest.raises(ValueError, match=message):
            MultilabelLoss(**options)
    loss = MultilabelLoss(positive_weight=[1.0, 2.0])
    with pytest.raises(ValueError, match="3 columns, the loss has 2 labels: pass candidates"):
        loss(torch.zeros(1, 3), torch.zeros(1, 3))
    with pytest.raises(ValueError, match="targets"):
        loss(torch.zeros(1, 2), torch.zeros(2, 2))
    with pytest.raises(ValueError, match="candidates have shape"):
        loss(torch.zeros(1, 2), torch.zeros(1, 2), torch.zeros(1, 3, dtype=torch.int64))


def test_any_loss_is_estimated_without_bias():
    """A loss that does not decompose: the subset 0/1 loss plus the square of the number of labels."""
    p = np.array([0.5, 0.8, 0.9])
    target = np.array([1, 0, 1])

    def loss(y):
        return float(np.any(y != target)) + y.sum() ** 2

    for complete in itertools.product([0, 1], repeat=3):
        mean = 0.0
        for observed, chance in ref.masks(complete, p):
            ids = np.flatnonzero(observed)

            def of_subsets(subset, ids=ids):
                full = np.zeros((len(subset), 3))
                full[:, ids] = subset.numpy()
                return torch.tensor([loss(row) for row in full], dtype=torch.float64)

            got = unbiased_estimate(of_subsets, p[ids]).item()
            assert got == pytest.approx(ref.general(loss, observed, p), abs=1e-10)
            mean += chance * got
        assert mean == pytest.approx(loss(np.array(complete)), abs=1e-10)


def test_estimate_over_several_chunks_of_subsets():
    p = np.full(16, 0.9)
    got = unbiased_estimate(lambda subset: subset.sum(dim=1).double() ** 2, p).item()
    mean, variance = 16 / 0.9, 16 / 0.9 * (1 - 1 / 0.9)  # of a sum of independent signed indicators
    assert got == pytest.approx(mean**2 + variance, rel=1e-9)


def test_many_positives_are_sampled_and_said_so():
    p = np.full(25, 0.97)
    exact = 25 / 0.97
    with pytest.warns(SampledEstimateWarning, match=r"25 observed labels.*2\^25 terms, 40000 sampled"):
        got = unbiased_estimate(
            lambda subset: subset.sum(dim=1).double(),
            p,
            samples=40_000,
            generator=torch.Generator().manual_seed(0),
        )
    mass = (2 / 0.97 - 1) ** 25
    assert abs(got.item() - exact) < 4 * mass * exact / np.sqrt(40_000)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        unbiased_estimate(lambda subset: subset.sum(dim=1).double(), p[:20])


def test_estimate_is_differentiable():
    s = torch.tensor([0.3, -1.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda t: unbiased_estimate(lambda sub: (sub * t).sum(dim=1).exp(), [0.5, 0.7]), (s,)
    )
    with pytest.raises(ValueError, match="one value per subset"):
        unbiased_estimate(lambda subset: subset.sum(), [0.5])
    with pytest.raises(ValueError, match=r"in \(0, 1\]"):
        unbiased_estimate(lambda subset: subset.sum(dim=1), [0.0])
