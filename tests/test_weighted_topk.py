"""The dense weighted top-k as a torch operator."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from xmc_fast.nn.weighted_topk import weighted_topk  # noqa: E402


def reference(eta, a, b, k):
    """numpy: gains in double, order by gain, then label."""
    gains = eta.astype(np.float64)
    gains = gains * a if a is not None else gains
    gains = gains + b if b is not None else gains
    order = np.argsort(-gains, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(gains, order, axis=1), order


@pytest.mark.parametrize("labels", [1, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 100, 1000])
def test_equals_numpy(simd, labels):
    rng = np.random.default_rng(labels)
    eta = rng.random((6, labels)).astype(np.float32)
    for weights in ("", "a", "b", "ab"):
        a, b = (rng.normal(size=labels).astype(np.float32) if w in weights else None for w in "ab")
        tensors = [None if w is None else torch.from_numpy(w) for w in (a, b)]
        for k in {1, min(5, labels), labels}:
            gains, ids = weighted_topk(torch.from_numpy(eta), k, *tensors)
            expected_gains, expected_ids = reference(eta, a, b, k)
            assert gains.shape == ids.shape == (6, k)
            np.testing.assert_allclose(gains.numpy(), expected_gains, atol=1e-6)
            assert (ids.numpy() == expected_ids).mean() > 0.99  # float32 rounding may swap near-equal gains
            assert all(len(set(row)) == k for row in ids.tolist())


def test_ties_nan_views_and_threads(simd):
    eta = torch.full((2, 40), 0.5)
    assert weighted_topk(eta, 3)[1].tolist() == [[0, 1, 2]] * 2
    eta[0, :39] = float("nan")
    gains, ids = weighted_topk(eta, 2)
    assert ids[0].tolist() == [39, 0]
    assert gains[0, 0] == 0.5
    assert torch.isnan(gains[0, 1])
    wide = torch.rand(50, 20_000)
    view = wide[::2, 5:15_000]
    expected = torch.topk(view, 10)
    gains, ids = weighted_topk(view, 10)
    assert torch.equal(gains, expected.values)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    single = weighted_topk(view, 10)
    torch.set_num_threads(before)
    assert torch.equal(single[1], ids)
    assert torch.equal(weighted_topk(view.t().contiguous().t(), 10)[1], ids)


def test_empty_and_bad_input():
    assert weighted_topk(torch.empty(0, 4), 2)[0].shape == (0, 2)
    eta = torch.rand(2, 4)
    for args, message in [
        ((eta, 5), "between 1 and"),
        ((eta, 0), "between 1 and"),
        ((eta.double(), 1), "float32"),
        ((eta[0], 1), "matrix"),
        ((eta, 1, torch.ones(3)), r"a must be float32 of shape \(4,\)"),
        ((eta, 1, None, torch.ones(4, dtype=torch.float64)), "b must be float32"),
    ]:
        with pytest.raises(ValueError, match=message):
            weighted_topk(*args)


def test_opcheck():
    eta = torch.rand(3, 9)
    torch.library.opcheck(torch.ops.xmc_fast.weighted_topk.default, (eta, torch.rand(9), None, 2))
