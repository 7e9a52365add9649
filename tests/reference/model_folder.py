"""The weights of a model folder, exact or small, by docs/howto/file_format.md: JSON and numpy only."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

DTYPES = {"F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "U32": "<u4", "U16": "<u2", "U8": "u1"}


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
    if "packed" in manifest:
        t = tensors(Path(folder) / manifest["packed"]["file"])
        ptr = t["ptr"].reshape(-1, W.shape[1] + 1).astype(np.int64)
        for b, c in np.ndindex(len(ptr), W.shape[1]):
            bytes_ = t["list"][t["first"][b] + (ptr[b, c] >> 2) : t["first"][b] + (ptr[b, c + 1] >> 2)]
            record = bytes_.reshape(-1, (3, 4, 6)[ptr[b, c] & 3])  # gaps of two postings, then their codes
            narrow = np.stack([record[:, 0] & 15, record[:, 0] >> 4], 1) if record.shape[1] == 3 else None
            gaps = (
                narrow if narrow is not None else record[:, :-2].copy().view(f"<u{record.shape[1] // 2 - 1}")
            )
            place, code = np.cumsum(gaps.ravel(), dtype=np.int64) - 1, record[:, -2:].ravel()
            W[t["label"][b * 65536 + place[code > 0]], c] = t["level"][code[code > 0]]
        if len(t["bias"]):
            W[t["label"], -1] = t["bias"]
    return W
