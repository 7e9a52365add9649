"""Sparse rows into a network: the first layer and the batches."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

torch = pytest.importorskip("torch")

from xmc_fast.nn import CsrRows, SparseInputLinear, Trainer, csr_batches  # noqa: E402


def rows(n=7, d=11, density=0.3, seed=0):
    X = sp.random(n, d, density, format="csr", random_state=seed, dtype=np.float32)
    keep = np.arange(n) != n // 2  # a row without entries
    return sp.csr_matrix(sp.diags(keep.astype(np.float32)) @ X)


def batch(X):
    return next(iter(csr_batches(X, batch_size=max(X.shape[0], 1))))


@pytest.mark.parametrize("sparse_grad", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("n", [1, 7, 64])
def test_layer_equals_dense(n, bias, sparse_grad):
    X = rows(n)
    layer = SparseInputLinear(11, 5, bias=bias, sparse_grad=sparse_grad)
    dense = torch.from_numpy(X.toarray())
    grad = torch.randn(n, 5, generator=torch.Generator().manual_seed(1))
    expected = layer(dense)
    expected.backward(grad)
    expected_grads = [p.grad.clone() for p in layer.parameters()]
    layer.zero_grad()
    got = layer(batch(X))
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-6)
    got.backward(grad)
    assert layer.weight.grad.is_sparse == sparse_grad
    for p, e in zip(layer.parameters(), expected_grads, strict=True):
        torch.testing.assert_close(p.grad.to_dense(), e, rtol=1e-5, atol=1e-6)


def test_rows_without_entries():
    layer = SparseInputLinear(4, 3)
    x = CsrRows(torch.zeros(3, dtype=torch.int64), torch.zeros(0, dtype=torch.int64), torch.zeros(0))
    out = layer(x)
    assert torch.equal(out, layer.bias.expand(2, 3))
    out.sum().backward()
    assert not layer.weight.grad.any()


def test_sparse_gradient_holds_each_column_of_the_batch_once():
    X = rows(30, 40, 0.1)
    layer = SparseInputLinear(40, 2, sparse_grad=True)
    layer(batch(X)).sum().backward()
    grad = layer.weight.grad
    assert grad._indices()[0].tolist() == sorted(set(X.indices.tolist()))
    before = layer.weight.detach().clone()
    torch.optim.SparseAdam([layer.weight]).step()
    changed = (layer.weight != before).any(1).nonzero()[:, 0]
    assert changed.tolist() == grad._indices()[0].tolist()


def test_starts_like_a_linear_layer():
    torch.manual_seed(0)
    layer = SparseInputLinear(100, 50)
    assert layer.weight.abs().max() <= 0.1
    assert layer.weight.detach().std() == pytest.approx(0.1 / 3**0.5, rel=0.05)
    assert "in_features=100" in repr(layer)
    with pytest.raises(ValueError, match="got 0 and 3"):
        SparseInputLinear(0, 3)


def test_batches_hold_each_row_once_and_shuffle_by_seed_and_epoch():
    X = rows(10)
    Y = sp.eye(10, format="csr")
    batches = csr_batches(X, Y, 4, random_state=3)
    assert (len(batches), batches.n) == (3, 10)
    epochs = [[y.indices.tolist() for _, y in batches] for _ in range(2)]
    for epoch in epochs:
        assert [len(b) for b in epoch] == [4, 4, 2]
        assert sorted(np.concatenate(epoch)) == list(range(10))
    assert epochs[0] != epochs[1]
    again = csr_batches(X, Y, 4, random_state=3)
    assert [[y.indices.tolist() for _, y in again] for _ in range(2)] == epochs
    order = np.random.default_rng([3, 0]).permutation(10)
    assert np.array_equal(np.concatenate(epochs[0]), order)
    for x, y in csr_batches(X, np.arange(20.0).reshape(10, 2), 4):
        assert (x.indptr.dtype, x.indices.dtype, x.values.dtype) == (torch.int64, torch.int64, torch.float32)
        assert y.dtype == torch.float32
        first = int(y[0, 0]) // 2
        np.testing.assert_array_equal(
            sp.csr_matrix((x.values, x.indices, x.indptr), (len(y), 11)).toarray(),
            X[first : first + len(y)].toarray(),
        )


def test_batches_in_the_training_loop():
    rng = np.random.default_rng(0)
    X = rows(200, 20, 0.5)
    Z = X @ rng.standard_normal((20, 3)).astype(np.float32)
    batches = csr_batches(X, Z)
    torch.manual_seed(0)
    model = SparseInputLinear(20, 3)
    trainer = Trainer(lambda m: torch.optim.Adam(m.parameters(), 0.05), epochs=20, batch_size=20)

    def mse(model, batch):
        x, z = batch
        return ((model(x) - z) ** 2).mean()

    history = trainer.fit(model, mse, batches.n, batches.fetch)
    assert history[-1]["loss"] < 0.05 * history[0]["loss"]


def test_errors():
    with pytest.raises(ValueError, match="Y has 3 rows, expected 7"):
        csr_batches(rows(), np.ones((3, 1)))
    with pytest.raises(ValueError, match="batch_size must be at least 1, got 0"):
        csr_batches(rows(), None, 0)
    with pytest.raises(ValueError, match="X must be finite"):
        csr_batches(np.array([[np.nan]]))
