"""The gather-dot operator against plain loops in float64."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from xmc_fast.nn import gather_dot as module  # noqa: E402
from xmc_fast.nn.gather_dot import gather_dot  # noqa: E402

# batch, width, dims, labels: 0, 1, four rows, vector widths and the block of candidates, and one beside
SIZES = [
    (0, 3, 5, 4),
    (2, 0, 5, 4),
    (3, 2, 0, 4),
    (1, 1, 1, 1),
    (2, 3, 15, 7),
    (2, 4, 16, 7),
    (3, 5, 17, 9),
    (2, 7, 31, 50),
    (2, 9, 33, 5000),
    (3, 255, 12, 40),
    (1, 256, 12, 300),
    (2, 257, 40, 3000),
]


def make(batch, width, dims, labels, seed=0, padding=0.2):
    rng = np.random.default_rng(seed)
    h, table = rng.standard_normal((batch, dims)), rng.standard_normal((labels, dims))
    candidates = rng.integers(0, labels, (batch, width))
    candidates[rng.random(candidates.shape) < padding] = -1
    g = rng.standard_normal((batch, width))
    return h, table, candidates, g


def reference(h, table, candidates, g):
    scores, gh, gt = np.zeros(candidates.shape), np.zeros_like(h), np.zeros_like(table)
    for b, row in enumerate(candidates):
        for j, label in enumerate(row):
            if label >= 0:
                scores[b, j] = h[b] @ table[label]
                gh[b] += g[b, j] * table[label]
                gt[label] += g[b, j] * h[b]
    return scores, gh, gt


def tensors(*arrays):
    return [torch.from_numpy(a).to(torch.int64 if a.dtype.kind == "i" else torch.float32) for a in arrays]


@pytest.mark.parametrize("sparse", [True, False])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_matches_reference(simd, size, sparse):
    arrays = make(*size)
    h, table, candidates, g = tensors(*arrays)
    want = reference(
        *(t.double().numpy() if t.is_floating_point() else t.numpy() for t in (h, table, candidates, g))
    )
    h.requires_grad_()
    table.requires_grad_()
    scores = gather_dot(h, table, candidates, sparse_grad=sparse)
    scores.backward(g)
    assert table.grad.is_sparse == sparse
    if sparse:
        used = np.unique(arrays[2][arrays[2] >= 0])
        np.testing.assert_array_equal(table.grad._indices().numpy()[0], used)
    for got, expected in zip((scores, h.grad, table.grad.to_dense()), want, strict=True):
        assert got.dtype == torch.float32
        assert tuple(got.shape) == expected.shape
        np.testing.assert_allclose(
            got.detach().numpy(), expected, rtol=0, atol=1e-5 * max(1, np.abs(expected).max(initial=0))
        )


def test_same_bits_for_any_threads(simd, monkeypatch):
    h, table, candidates, g = tensors(*make(9, 600, 64, 3000))

    def run(threads):
        monkeypatch.setattr(module, "_threads", lambda *_: threads)
        scores = gather_dot(h, table, candidates)
        gh = torch.ops.xmc_fast.gather_dot_grad_h(g, table, candidates)
        return scores, gh, *torch.ops.xmc_fast.gather_dot_grad_rows(g, h, candidates, 3000)

    for a, b in zip(run(1), run(3), strict=True):
        assert torch.equal(a, b)


def test_nan_stays_where_it_is(simd):
    h, table, candidates, g = tensors(*make(2, 6, 20, 9, padding=0))
    candidates[:] = torch.tensor([[0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 4, 6]])
    table[5] = float("nan")
    scores = gather_dot(h, table, candidates)
    assert scores.isnan().nonzero().tolist() == [[0, 5]]
    gh = torch.ops.xmc_fast.gather_dot_grad_h(g, table, candidates)
    assert gh[0].isnan().all()
    assert not gh[1].isnan().any()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_rows(dtype):
    h, table, candidates, _ = tensors(*make(3, 8, 40, 30))
    low = h.to(dtype).requires_grad_()
    scores = gather_dot(low, table, candidates)
    assert torch.equal(scores, gather_dot(low.float(), table, candidates))
    scores.sum().backward()
    assert low.grad.dtype == dtype
    with torch.autocast("cpu", torch.bfloat16):
        assert gather_dot(low, table, candidates).dtype == torch.float32


def test_autograd_of_torch_agrees():
    h, table, candidates, _ = make(3, 6, 5, 7)
    h, table = (torch.from_numpy(a).requires_grad_() for a in (h, table))
    c = torch.from_numpy(candidates)
    assert torch.autograd.gradcheck(lambda a, b: gather_dot(a, b, c, sparse_grad=False), (h, table))
    gather_dot(h, table, c).square().sum().backward()
    sparse = table.grad.to_dense()
    table.grad = None
    gather_dot(h, table, c, sparse_grad=False).square().sum().backward()
    torch.testing.assert_close(sparse, table.grad)


def test_opcheck():
    h, table, candidates, g = tensors(*make(3, 6, 5, 7))
    h.requires_grad_()
    table.requires_grad_()
    torch.library.opcheck(torch.ops.xmc_fast.gather_dot, (h, table, candidates, False))
    h, table = h.detach(), table.detach()
    torch.library.opcheck(torch.ops.xmc_fast.gather_dot_grad_h, (g, table, candidates))
    torch.library.opcheck(torch.ops.xmc_fast.gather_dot_grad_rows, (g, h, candidates, 7))


def test_trains_with_sparse_adam():
    h, table, candidates, _ = tensors(*make(4, 3, 8, 100, padding=0))
    table.requires_grad_()
    before = table.detach().clone()
    optimizer = torch.optim.SparseAdam([table], lr=0.1)
    gather_dot(h, table, candidates).square().sum().backward()
    optimizer.step()
    moved = (table.detach() != before).any(1).nonzero().squeeze(1)
    assert moved.tolist() == candidates.unique().tolist()


def test_errors():
    h, table, candidates, _ = tensors(*make(3, 6, 5, 7))
    with pytest.raises(ValueError, match=r"below the number of labels 6, got 6"):
        gather_dot(h, table[:6], torch.full((3, 1), 6))
    with pytest.raises(ValueError, match="h has 4 columns, table has 5"):
        gather_dot(h[:, :4], table, candidates)
    with pytest.raises(ValueError, match=r"candidates must be int64 of shape \(3, width\), got torch.int32"):
        gather_dot(h, table, candidates.int())
    with pytest.raises(ValueError, match="table must be a float32 matrix"):
        gather_dot(h, table.half(), candidates)
