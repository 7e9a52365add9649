"""Train and predict on a cluster: the same bytes as one process. Here: two local processes, the embedded data.

    pip install distributed
    python bench/examples/distributed_run.py [--workers 2] [--address tcp://scheduler:8786 --folder /shared/run]

With `--address` it runs on the cluster of that Dask scheduler; `--folder` is then one that all machines see. Killed at
any time, the same command goes on where it stopped.
"""

from __future__ import annotations

import argparse
import contextlib
import tempfile

from distributed import Client, LocalCluster

from xmc_fast import OneVsAll, metrics
from xmc_fast.data import load_demo
from xmc_fast.engine import connect


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--address", help="a Dask scheduler; a local cluster without it")
    parser.add_argument("--folder", help="where the blocks are stored; a temporary one without it")
    args = parser.parse_args()

    demo = load_demo()
    with contextlib.ExitStack() as stack:
        folder = args.folder or stack.enter_context(tempfile.TemporaryDirectory())
        cluster = args.address or stack.enter_context(
            LocalCluster(n_workers=args.workers, threads_per_worker=1, dashboard_address="127.0.0.1:0")
        )
        client = stack.enter_context(Client(cluster))
        model = OneVsAll(block_labels=20).fit(
            demo.X_train, demo.Y_train, engine=connect(client), checkpoint=folder
        )
        best = model.predict(demo.X_test, k=5, engine=connect(client))
        for name, work in model.report_["engine"]["workers"].items():
            print(name, work)
    alone = OneVsAll(block_labels=20).fit(demo.X_train, demo.Y_train)
    same = (alone.model_.to_csr() != model.model_.to_csr()).nnz == 0
    print(
        f"P@1 {100 * metrics.precision_at_k(demo.Y_test, best, k=1):.2f}; same weights as one process: {same}"
    )


if __name__ == "__main__":
    main()
