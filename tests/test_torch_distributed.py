"""Several gloo processes give the results of one: DDP, FSDP2, an output layer whose labels are sharded."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
if not (torch.distributed.is_available() and torch.distributed.is_gloo_available()):
    pytest.skip("torch without gloo", allow_module_level=True)

START = """
import copy, sys, torch, torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from xmc_fast.nn import FixedFanInLinear, LabelLoss, ShardedFanInLinear
rank, world, port = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)
torch.manual_seed(7)
ROWS = 8
x = torch.randn(ROWS, 12)
labels = torch.stack([torch.randperm(37)[:3] for _ in range(ROWS)])
labels[2, 1:], labels[5] = -1, -1
mine = slice(ROWS * rank // world, ROWS * (rank + 1) // world)
torch.manual_seed(0)
encoder = nn.Linear(12, 16)
layer = FixedFanInLinear(16, 37, 4, group_size=2, random_state=3)
"""
DDP = """
torch.manual_seed(rank)
sent = FixedFanInLinear(40_000, 30, 3, random_state=rank)  # DDP sends the connections of rank 0
model = DistributedDataParallel(sent)
wanted = FixedFanInLinear(40_000, 30, 3, random_state=0)
assert torch.equal(sent.indices, wanted.indices)
with torch.no_grad():
    wanted.weight.copy_(sent.weight), wanted.bias.copy_(sent.bias)
torch.manual_seed(7)
wide = torch.randn(ROWS, 40_000)
model(wide[mine]).square().mean().backward()
wanted(wide).square().mean().backward()
torch.testing.assert_close(sent.weight.grad, wanted.weight.grad)
"""
FSDP2 = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.output = copy.deepcopy(encoder), LabelLoss(copy.deepcopy(layer), "squared_hinge")
        self.plain = copy.deepcopy(layer)
    def forward(self, x, labels):
        h = self.encoder(x)
        return self.output(h, labels) + self.plain(h).square().mean()
one, model = Model(), Model()
mesh = dist.device_mesh.init_device_mesh("cpu", (world,))
for part in (model.output, model.plain, model):
    fully_shard(part, mesh=mesh)
assert model.plain.weight.to_local().shape[0] < 37
for step in range(2):
    for module, rows in ((one, slice(None)), (model, mine)):
        optimizer = torch.optim.SGD(module.parameters(), 0.1)
        optimizer.zero_grad()
        module(x[rows], labels[rows]).backward()
        optimizer.step()
for (name, a), b in zip(one.named_parameters(), model.parameters(), strict=True):
    torch.testing.assert_close(b.full_tensor(), a.detach(), msg=lambda text: f"{name}: {text}")
"""
SHARDED = """
for loss in ("bce", "squared_hinge"):
    whole, shard = copy.deepcopy(layer), ShardedFanInLinear.from_layer(layer)
    one, inside = copy.deepcopy(encoder), DistributedDataParallel(copy.deepcopy(encoder))
    for step in range(2):
        want = LabelLoss(whole, loss)(one(x), labels)
        got = shard.loss(inside(x[mine]), labels[mine], loss)
        torch.testing.assert_close(got, want)
        for value, modules in ((want, (one, whole)), (got, (inside, shard))):
            optimizer = torch.optim.SGD([p for m in modules for p in m.parameters()], 0.1)
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
    torch.testing.assert_close(inside.module.weight, one.weight)
    state = shard.gathered()
    assert sorted(state) == sorted(whole.state_dict())
    for name, t in whole.state_dict().items():
        torch.testing.assert_close(state[name], t)
    some = x[: rank + 1] if rank else x[:0]  # different numbers of rows, none on one process
    for k in (0, 5, 37):
        scores, ids = shard.topk(one(some), k)
        want = whole.topk(one(some), k)
        torch.testing.assert_close(scores, want[0])
        assert torch.equal(ids, want[1])
shard = ShardedFanInLinear(16, 37, 4, group_size=2)
assert len(shard.gathered()["weight"]) == 37
equal = ShardedFanInLinear.from_layer(layer)
equal.layer.weight.data.zero_(), equal.layer.bias.data.zero_()
assert equal.topk(encoder(x[:2]), 6)[1].tolist() == [[0, 1, 2, 3, 4, 5]] * 2
few = ShardedFanInLinear(16, 3, 2, group_size=2)  # fewer groups than processes
assert few.topk(torch.randn(1, 16), 3)[1].sort().values.tolist() == [[0, 1, 2]]
"""
LIGHTXML = """
from transformers import BertConfig, BertModel
from xmc_fast.nn._lightxml_net import LightXMLNet
sizes = dict(vocab_size=20, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32)
bert = BertModel(BertConfig(**sizes, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0))
one = LightXMLNet(bert, torch.tensor([0, 2, 5, 7]), bottleneck=4, layers=2, dropout=0.0)
one.table.sparse_grad = False
inside = DistributedDataParallel(copy.deepcopy(one), find_unused_parameters=True)  # BERT's pooler
ids = torch.randint(20, (ROWS, 5))
positives = torch.randint(-1, 7, (ROWS, 2))
def batch(rows):
    inputs = {"input_ids": ids[rows], "attention_mask": torch.ones_like(ids[rows])}
    return {"inputs": inputs, "positives": positives[rows], "k": 2}
for net, rows in ((one, slice(None)), (inside, mine)):
    net(batch(rows))[0].backward()
for (name, a), b in zip(one.named_parameters(), inside.module.parameters(), strict=True):
    if a.grad is not None:
        torch.testing.assert_close(b.grad, a.grad, msg=lambda text: f"{name}: {text}")
assert one.table.weight.grad.abs().sum() > 0
"""
# Without os._exit a loaded machine sometimes sees torch's own threads abort the interpreter's end.
END = """
import os
dist.barrier()
dist.destroy_process_group()
os._exit(0)
"""


def run(world, *parts):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    program = "\n".join((START, *parts, END))
    processes = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", program, str(rank), str(world), port],
            stderr=subprocess.PIPE,
            env=dict(os.environ, OMP_NUM_THREADS="1"),
        )
        for rank in range(world)
    ]
    errors = [process.communicate(timeout=240)[1].decode()[-1500:] for process in processes]
    assert [process.returncode for process in processes] == [0] * world, errors


@pytest.mark.parametrize("world", [2, 4])
def test_results_are_those_of_one_process(world):
    pytest.importorskip("transformers")
    run(world, *((DDP, LIGHTXML) if world == 2 else ()), FSDP2, SHARDED)
