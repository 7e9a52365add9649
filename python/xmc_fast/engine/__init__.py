"""Label blocks on an engine that people already run: Dask, Ray or any joblib backend.

An estimator describes its fit as a `Work`: arrays that every machine needs (shipped once per machine, mapped
there), numbered blocks, how to solve some of them and where a solved one is stored. `run` gives ranges of
blocks, sized by cost, to the engine's workers, gives the blocks of a lost worker to another, lets idle workers
take over the rest of a slow one's range, and names the block in every error. Blocks are cut by data and
parameters only and each is stored atomically, so neither workers nor failures change a byte of the result.
"""

from xmc_fast._work import Work, dumps
from xmc_fast.engine._connect import ConnectedEngine, connect
from xmc_fast.engine._pool import EngineError
from xmc_fast.engine._predict import predict
from xmc_fast.engine._run import run

__all__ = ["ConnectedEngine", "EngineError", "Work", "connect", "dumps", "predict", "run"]
