"""Folders of the small form of earlier versions: lists of records of two gaps and two codes of common levels."""

from __future__ import annotations

import json

import numpy as np
import pytest
import scipy.sparse as sp

from xmc_fast import SparseModel, load
from xmc_fast.model import ModelFormatError
from xmc_fast.model._packed_before import FORM


def records(places, codes, width):
    most = (15, 255, 65535)[width]
    gaps, of_gap = [], []
    for gap, code in zip(np.diff(places, prepend=-1), codes, strict=True):
        fillers = (gap - 1) // most
        gaps += [most] * fillers + [gap - most * fillers]
        of_gap += [0] * fillers + [code]
    if len(gaps) % 2:
        gaps, of_gap = [*gaps, 0], [*of_gap, 0]
    gaps, of_gap = np.array(gaps).reshape(-1, 2), np.array(of_gap, np.uint8).reshape(-1, 2)
    head = gaps[:, :1] | gaps[:, 1:] << 4 if width == 0 else gaps
    dtype = np.dtype("<u2") if width == 2 else np.dtype("u1")
    coded = np.ascontiguousarray(head.astype(dtype)).view(np.uint8)
    return np.concatenate([coded, of_gap], 1).ravel()


@pytest.fixture
def before(tmp_path):
    """A folder with columns of every width, an empty one, two blocks and a bias; and its weights."""
    rng = np.random.default_rng(0)
    n, level = 66_000, np.concatenate([[0], np.sort(rng.normal(size=255))]).astype(np.float32)
    label, bias = rng.permutation(n).astype(np.int32), rng.normal(size=n).astype(np.float32)
    W = np.zeros((n, 5), np.float32)
    W[label, 4] = bias
    first, ptr, lists = [0], [], []
    for b in range(2):
        size, ends = min(n - 65536 * b, 65536), [0]
        for column, share in enumerate((0.3, 0.004, 0.0, 0.0002)):
            place = np.flatnonzero(rng.random(size) < share)
            code, width = rng.integers(1, 256, len(place)), (0, 1, 0, 2)[column]
            W[label[65536 * b + place], column] = level[code]
            lists.append(records(place, code, width) if len(place) else np.empty(0, np.uint8))
            ptr.append(4 * ends[-1] + width)
            ends.append(ends[-1] + len(lists[-1]))
        ptr += [4 * ends[-1], 4 * ends[-1]]
        first.append(first[-1] + ends[-1])
    arrays = {
        "label": label,
        "bias": bias,
        "level": level,
        "first": np.array(first, np.int64),
        "ptr": np.array(ptr, np.uint32),
        "list": np.concatenate(lists),
    }
    SparseModel(sp.csr_matrix(W), bias=1.0).compress(delta=0.0).save(tmp_path / "m")
    path = tmp_path / "m" / "packed.safetensors"
    FORM.write(path, arrays, n, 5, int(np.count_nonzero(W)))
    manifest = json.loads((tmp_path / "m" / "manifest.json").read_text())
    manifest["packed"] |= {"bytes": path.stat().st_size}
    (tmp_path / "m" / "manifest.json").write_text(json.dumps(manifest))
    return tmp_path / "m", W


def test_its_weights_are_read(before):
    folder, W = before
    model = load(folder)
    assert not model.compressed
    np.testing.assert_array_equal(model.to_csr().toarray(), W)
    x = np.ones((1, 4), np.float32)
    np.testing.assert_allclose(model.predict(x, 3).data, np.sort(W.sum(1))[::-1][:3], rtol=1e-5)
    assert model.compress().compressed


def test_damage_is_told(before):
    folder, _ = before
    path = folder / "packed.safetensors"
    size = path.stat().st_size
    arrays = FORM.read(path, map_file=False, verify=False)[1]
    FORM.write(path, arrays | {"ptr": arrays["ptr"][::-1].copy()}, 66_000, 5, 1)
    assert path.stat().st_size == size
    with pytest.raises(ModelFormatError, match="damaged"):
        load(folder).to_csr()
