"""LightXML's own step against a loop-style implementation, label clustering, and the overhead of one prediction.

    python -m bench.speed.bench_lightxml [step] [cluster] [one]

`step`: candidate generation and ranking of a training step (choice of clusters, candidates, targets, bottleneck,
scores, loss, and backward to the bottleneck and the label table), given the text's vector and the cluster logits.
The loop-style peer collects the candidates of each text in Python lists and pads them, embeds them with
nn.Embedding and multiplies with bmm. CPU time, one thread, interleaved; the generator's product, which both need,
is timed beside it.

`one`: a prediction of one text from its vector on, so everything but tokenizer and encoder.
"""

from __future__ import annotations

import itertools
import time

import numpy as np
import torch
import torch.nn.functional as F

from bench.common import Table, arguments, interleave, machine
from xmc_fast.nn._lightxml_net import LightXMLNet

LABELS, LEAF, BEAM, BATCH, HIDDEN, DIMS = 131_072, 64, 10, 16, 1920, 400


class _Config:
    hidden_size = HIDDEN


class _NoEncoder(torch.nn.Module):
    config = _Config()


def make(labels: int = LABELS):
    torch.manual_seed(0)
    offsets = torch.arange(0, labels + 1, LEAF)
    net = LightXMLNet(_NoEncoder(), offsets, bottleneck=DIMS, layers=1, dropout=0.0)
    e = torch.randn(BATCH, HIDDEN)
    positives = torch.from_numpy(np.sort(np.random.default_rng(0).integers(0, labels, (BATCH, 5)), 1))
    return net, e, positives


def ours(net: LightXMLNet, e: torch.Tensor, logits: torch.Tensor, positives: torch.Tensor) -> torch.Tensor:
    """One step: the loss of the candidates, its gradients left in the parameters."""
    net.zero_grad()
    loss = net.rank_loss(e, net.choose(logits, BEAM, positives), positives)
    loss.backward()
    return loss.detach()


class Loop:
    """The same step with Python loops over texts, clusters and candidates."""

    def __init__(self, net: LightXMLNet) -> None:
        self.net = net
        edges = net.offsets.tolist()
        self.groups = [list(range(a, b)) for a, b in itertools.pairwise(edges)]
        self.group_of = {label: g for g, group in enumerate(self.groups) for label in group}
        self.embed = torch.nn.Embedding(int(net.offsets[-1]), DIMS)
        with torch.no_grad():
            self.embed.weight.copy_(net.table.weight)

    def __call__(self, e: torch.Tensor, logits: torch.Tensor, positives: torch.Tensor) -> torch.Tensor:
        self.net.zero_grad()
        self.embed.zero_grad()
        lists, targets = [], []
        for b in range(len(e)):
            true = set(positives[b].tolist())
            scores = logits[b].clone()
            for label in true:
                scores[self.group_of[label]] = float("inf")
            chosen = scores.topk(BEAM).indices.tolist()
            found = []
            for group in chosen:
                for label in self.groups[group]:
                    found.append(label)
            lists.append(found)
            targets.append([1.0 if label in true else 0.0 for label in found])
        width = max(map(len, lists))
        candidates = torch.tensor([row + [0] * (width - len(row)) for row in lists])
        y = torch.tensor([row + [0.0] * (width - len(row)) for row in targets])
        mask = torch.tensor([[1.0] * len(row) + [0.0] * (width - len(row)) for row in lists])
        h = self.net.bottleneck(e)
        scores = torch.bmm(self.embed(candidates), h.unsqueeze(2)).squeeze(2)
        loss = (F.binary_cross_entropy_with_logits(scores, y, reduction="none") * mask).sum() / len(e)
        loss.backward()
        return loss.detach()


def step() -> Table:
    """Candidate generation and ranking, one training step, at two numbers of labels."""
    torch.set_num_threads(1)
    table = Table("lightxml_step", ["labels", "what", "cpu_ms", "ratio"], machine())
    for labels in (LABELS, 670_080):
        net, e, positives = make(labels)
        loop = Loop(net)
        with torch.no_grad():
            logits = net.recall(e)
        loss = ours(net, e, logits, positives)
        gradient = net.table.weight.grad.coalesce()
        torch.testing.assert_close(loss, loop(e, logits, positives), rtol=1e-4, atol=1e-4)
        found = gradient.indices()[0]
        torch.testing.assert_close(gradient.values(), loop.embed.weight.grad[found], rtol=1e-3, atol=1e-6)
        cases = {
            "xmc_fast": lambda n=net, e=e, z=logits, p=positives: ours(n, e, z, p),
            "loops": lambda loop=loop, e=e, z=logits, p=positives: loop(e, z, p),
            "xmc_fast, candidates alone": lambda n=net, z=logits, p=positives: n.candidates(
                n.choose(z, BEAM, p)
            ),
            "generator (both)": lambda n=net, e=e: n.recall(e),
        }
        seconds = interleave(cases, rounds=9, clock=time.process_time, budget=40)
        for name, value in seconds.items():
            table.add(labels=labels, what=name, cpu_ms=1e3 * value, ratio=value / seconds["xmc_fast"])
    return table


def one() -> Table:
    """One text at 30,720 and 131,072 labels: everything but tokenizer and encoder."""
    torch.set_num_threads(1)
    from xmc_fast.nn import LightXML

    table = Table("lightxml_one", ["labels", "wall_ms"], machine())
    for labels in (30_720, LABELS):
        net, e, _ = make(labels)
        net.eval().represent = lambda inputs, e=e: e[:1]
        model = LightXML("unused", beam=BEAM)
        model.net_, model.n_labels_ = net, labels
        model.order_ = np.random.default_rng(0).permutation(labels).astype(np.int32)
        seconds = interleave({"one": lambda model=model: model._best({}, 5)}, rounds=200)
        table.add(labels=labels, wall_ms=1e3 * seconds["one"])
    return table


def cluster() -> Table:
    """Clustering of 41,218 real labels, see bench_cluster.py."""
    from bench.speed import bench_cluster

    return bench_cluster.bench("tibkat", *bench_cluster.tibkat(), max_leaf=64, peers=True)


def main() -> None:
    benches = {"step": step, "one": one, "cluster": cluster}
    for name in arguments(__doc__, list(benches)):
        table = benches[name]()
        table.save()
        print(table)


if __name__ == "__main__":
    main()
