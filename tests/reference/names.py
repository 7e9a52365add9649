"""Names of labels in texts, word by word."""

from __future__ import annotations

import re


def words(text):
    return re.findall(r"\b\w\w+\b", text.lower())


def root(word, endings, spellings=()):
    for old, new in spellings:
        word = word.replace(old, new)
    for ending in sorted(endings, key=lambda e: -len(e.encode())):
        if word.endswith(ending) and len(word.encode()) - len(ending.encode()) >= 4:
            return word[: len(word) - len(ending)]
    return word


def find(names, fields, endings, head, spellings=()):
    """label -> (count, first, in_head, exact, words, ambiguity) for one row; ``names``: (text, label) pairs."""
    table = {}  # roots -> label -> the names' words
    for text, label in names:
        if words(text):
            key = tuple(root(w, endings, spellings) for w in words(text))
            table.setdefault(key, {}).setdefault(label, []).append(words(text))
    longest = max(map(len, table), default=0)
    found, before = {}, 0
    for number, field in enumerate(fields):
        tokens = words(field)
        roots = [root(w, endings, spellings) for w in tokens]
        until = (len(tokens) if number == 0 else 0) if len(fields) > 1 else head
        if len(fields) > 1 and number:
            until = len(words(fields[0]))
        covered = 0
        for i in range(len(tokens)):
            sizes = [
                n for n in range(1, longest + 1) if tuple(roots[i : i + n]) in table and i + n <= len(tokens)
            ]
            if not sizes or i + max(sizes) <= covered:
                continue
            size = max(sizes)
            covered = i + size
            labels = table[tuple(roots[i : i + size])]
            for label, forms in labels.items():
                old = found.get(label, (0, before + i, 0, 0, 0, 10**9))
                found[label] = (
                    old[0] + 1,
                    old[1],
                    old[2] + (before + i < until),
                    old[3] + (tokens[i : i + size] in forms),
                    max(old[4], size),
                    min(old[5], len(labels)),
                )
        before += len(tokens)
    return found
