"""The weights of a model folder of any form, by docs/howto/file_format.md: JSON and numpy only."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

DTYPES = {
    "F32": "<f4",
    "F16": "<f2",
    "I64": "<i8",
    "I32": "<i4",
    "U32": "<u4",
    "U16": "<u2",
    "U8": "u1",
    "I8": "i1",
}


def tensors(path):
    raw = Path(path).read_bytes()
    start = 8 + int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8:start])
    header.pop("__metadata__")
    cut = {
        name: raw[start + e["data_offsets"][0] : start + e["data_offsets"][1]] for name, e in header.items()
    }
    return {name: np.frombuffer(cut[name], DTYPES[e["dtype"]]) for name, e in header.items()}


def weights(folder):
    """Dense, n_labels x n_columns."""
    manifest = json.loads((Path(folder) / "manifest.json").read_text())
    W = np.zeros((manifest["n_labels"], manifest["n_features"] + (manifest["bias"] is not None)), np.float32)
    for block in manifest["blocks"]:
        t = tensors(Path(folder) / block["file"])
        rows = block["first_label"] + np.repeat(np.arange(len(t["indptr"]) - 1), np.diff(t["indptr"]))
        W[rows, t["indices"]] = t["data"]
    for form, fill in (("packed", fill_packed), ("layout", fill_layout)):
        if form in manifest:
            fill(W, tensors(Path(folder) / manifest[form]["file"]))
    return W


def fill_packed(W, t):
    lane = np.arange(64) % 16 // 4 * 16 + np.arange(64) // 16 * 4 + np.arange(64) % 4  # of each bit of a mask
    ptr = t["ptr"].reshape(-1, W.shape[1] + 1).astype(np.int64)
    for b, c in np.ndindex(len(ptr), W.shape[1]):
        left, flags = (
            t["list"][t["first"][b] + (ptr[b, c] >> 3) : t["first"][b] + (ptr[b, c + 1] >> 3)],
            ptr[b, c] & 7,
        )
        tiles = int(left[:2].view("<u2")[0]) if flags & 4 else 0
        left, places, q = left[2:] if flags & 4 else left, [], []
        for tile in range(tiles):
            bits = np.flatnonzero(np.unpackbits(left[:8], bitorder="little"))
            places.append(64 * tile + lane[bits])
            q.append(left[8 : 8 + len(bits)])
            left = left[8 + len(bits) :]
        n = len(left) * 2 // (3, 4, 6)[flags & 3]
        gaps = left[: len(left) - n]
        if flags & 3 == 0:
            gaps = np.stack([gaps & 15, gaps >> 4], 1).ravel()[:n]
        elif flags & 3 == 2:
            gaps = gaps.copy().view("<u2")
        places.append(64 * tiles - 1 + np.cumsum(gaps, dtype=np.int64))
        q.append(left[len(left) - n :])
        place, q = b * 65536 + np.concatenate(places), np.concatenate(q).view(np.int8)
        place, q = place[q != 0], q[q != 0]
        W[t["label"][place], c] = q.astype(np.float32) * t["step"][place]
    if len(t["bias"]):
        W[t["label"], -1] = t["bias"]


def fill_layout(W, t):
    entry, cells = (
        t["entry"].reshape(-1, W.shape[1]),
        t["cell"].view("<u8").reshape(-1, 2),
    )  # mask, first weight
    posting, outlier = t["posting"].reshape(-1, 3), t["outlier"].reshape(-1, 3)  # place, 4 bytes

    def numbers(postings, dtype):
        return postings[:, 1:].copy().view(dtype).ravel()

    for b, c in np.ndindex(entry.shape):
        n_dense, _, first_cell, _, first_slot, first_posting = t["parts"].reshape(-1, 6)[b]
        label, at = t["label"][b * t["block"][0] : (b + 1) * t["block"][0]], entry[b, c]
        few = outlier[:0]
        if at <= -2:
            head = first_posting - 2 - at
            few = posting[head + 1 : head + 1 + numbers(posting[head : head + 1], "<u4")[0]]
        elif at >= 0:
            few = outlier[t["out_ptr"][first_slot + at] : t["out_ptr"][first_slot + at + 1]]
            tiles = cells[first_cell + at : first_cell + -(-len(label) // 64) * n_dense : n_dense]
            for number, (mask, first) in enumerate(tiles):
                lanes = np.flatnonzero(mask >> np.arange(64, dtype="<u8") & np.uint64(1))
                W[label[64 * number + lanes], c] = t["weight"][first : first + np.uint64(len(lanes))]
        W[label[few[:, 0]], c] = numbers(few, "<f4")
