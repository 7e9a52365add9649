"""LightXML: raw text in, the k best labels out, one transformer trained end to end (Jiang et al., AAAI 2021).

The encoder's last [CLS] states feed a generator that recalls label clusters and a discriminator that ranks the
labels in them; since both learn together, the negatives the discriminator sees get harder (dynamic negatives). A
label's score is the product of its cluster's and its own probability.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
import torch

from xmc_fast._progress import progress
from xmc_fast._validate import Csr, labels, to_scipy
from xmc_fast.cluster import LabelTree, label_tree
from xmc_fast.data import read_chunks
from xmc_fast.model import top_csr, write_pieces
from xmc_fast.model._names import check_names
from xmc_fast.nn import _lightxml_fit as fitting
from xmc_fast.nn import _lightxml_store as store
from xmc_fast.nn._estimator import NeuralEstimator
from xmc_fast.nn._lightxml_defaults import Chosen, beam_of, check_settings, choose
from xmc_fast.nn._lightxml_net import LightXMLNet
from xmc_fast.nn.tokens import Encoder, Tokens, cls_last, load_encoder, tokenize
from xmc_fast.nn.train import autocast, resolve_device, to_device
from xmc_fast.texts._labels import encode

FLAT_LABELS = 32_768  # mode="auto": one label per cluster up to here
N_LABELS_LIMIT = 1 << 32


@dataclass(eq=False, repr=False, kw_only=True)
class LightXML(NeuralEstimator):
    """A transformer with dynamic negative sampling for text.

    Parameters
    ----------
    encoder : str, path or Encoder
        A transformers name or folder (BERT, RoBERTa, XLNet, DeBERTa, MiniLM, ...); see
        `xmc_fast.nn.load_encoder`.
    mode : {"auto", "flat", "clusters"}
        "flat" is a cluster per label, the generator alone; "auto" takes it up to 32,768 labels.
    max_leaf, beam : int
        The most labels of a cluster, and the clusters whose labels are ranked: by default 10, from 300,000 labels on
        32, from 600,000 on 75.
    bottleneck : int
        Dims of the label embeddings.
    layers, dropout : int, float
        Last encoder layers whose [CLS] states are concatenated (fewer if the encoder has not that many), and the
        dropout on them.
    pooling : {"cls", "mean"}
        "mean" takes the mean of a layer's states in place of the [CLS] state, with ``layers=1`` for encoders that were
        trained for it (sentence encoders such as MiniLM).
    head_start : {"random", "centroids"}
        "centroids": generator and discriminator start as linear discriminants between the centroids of the labels in
        the vectors of the encoder as it comes, at the price of one pass of the texts through the encoder. Take it with
        ``pooling="mean"`` and ``layers=1`` (docs/experiments/lightxml.md).
    activation : {"identity", "sigmoid"}
        Of the bottleneck. The paper's equation 4 has a sigmoid, its authors' program none; without it the
        discriminator learns in a fraction of the steps (docs/experiments/lightxml.md).
    label_bias : bool
        Give each label of the discriminator a bias that starts at its log-odds (the paper has none; not with
        ``fan_in``).
    fan_in, group_size : int or None, int
        With ``fan_in`` a label's embedding has so many non-zero dims only, shared by ``group_size`` neighbours.
    negatives : {"dynamic", "static", "static_copy", "random"}
        Where the discriminator's negatives come from. Static ones are for comparison: the generator is trained
        first, its clusters are fixed, then the discriminator is trained on the frozen encoder ("static", the
        paper's S) or on a copy of its own ("static_copy", BS). "random": clusters drawn once per text.
    max_length : int
        Longer texts are cut to so many tokens (a warning tells how many).
    warmup_epochs : int
        Train generator and discriminator alone for so many epochs first, on the vectors of the encoder as it
        comes, which are computed once (in memory: texts x layers x hidden floats). Cheap, and what follows
        starts from heads that make sense. By default about 1,250 steps, at most 10 epochs, and none from 20,000 steps
        of ``epochs`` on. With ``epochs=0`` the encoder keeps its pretrained weights.
    cooldown_epochs : int
        The same at the end, on the vectors of the encoder as trained: the label table, of which a step touches a few
        rows only, lags behind an encoder that changes. Worth it after few epochs. Not for static negatives, whose
        discriminator is trained on the finished encoder anyway.
    epochs, batch_size, lr, weight_decay
        Of the training: AdamW, no decay on biases and normalisation; SparseAdam for the label table.
    schedule : {"constant", "linear", "cosine"} or function
        Of the rates, in each phase.
    precision, accumulate, clip_norm, patience, monitor, callbacks, workers
        As for `xmc_fast.nn.Trainer`; ``precision`` holds for predictions, too.
    swa_start : "auto", None or int
        As for `xmc_fast.nn.Trainer`; "auto" averages the second half of a run of 20,000 steps or more.
    head_lr : float, optional
        Rate of everything but the encoder. Heads start from random weights: by default the rate is that of the paper,
        ``lr``, from 20,000 steps on, and higher for fewer steps (20,000 / steps times, at most 20 times).
    rank_weight : float
        Of the discriminator's loss. Both losses are sums over labels per text, so that their relation does not depend
        on the numbers of clusters and candidates.
    frozen_layers : int
        The embeddings and so many lower layers keep their pretrained weights. What they give is computed once (2 bytes
        x hidden a token, in a file of ``layer_cache``, or a temporary one); a step runs the upper layers only.
    layer_cache : folder, optional
        Keeps what frozen layers give and the vectors of the warm-up, for other runs on the same texts.
    lora : int, optional
        Train additions of that rank to the query and value weights of the encoder, nothing else of it (LoRA), with
        ``head_lr``. They become part of its weights at the end.
    gradient_checkpointing : bool
        Compute activations again in the backward pass: less memory, about a third more time.
    random_state : int
        Seeds the clustering, the weights and the order of the texts.
    device, n_jobs, token_cache
        ``n_jobs`` threads for clustering and tokens; ``token_cache`` is a folder, see
        `xmc_fast.nn.tokenize`.

    Attributes
    ----------
    net_ : torch module
    order_ : int32 array (labels,)
        Labels in cluster order.
    label_names_ : list of str, or None
        Names of the labels, if they were given.
    history_ : list of dict
        One row per epoch.

    Examples
    --------
    >>> model = LightXML("encoder-folder/", epochs=3)  # doctest: +SKIP
    >>> model.fit(["iron ore", "green tea"], Y).predict(["black tea"], k=5)  # doctest: +SKIP
    """

    encoder: str | os.PathLike[str] | Encoder = field(kw_only=False)
    mode: str = "auto"
    max_leaf: int = 80
    beam: int | None = None
    bottleneck: int = 400
    layers: int = 5
    pooling: str = "cls"
    head_start: str = "random"
    dropout: float = 0.5
    activation: str = "identity"
    label_bias: bool = True
    fan_in: int | None = None
    group_size: int = 16
    negatives: str = "dynamic"
    max_length: int = 128
    warmup_epochs: int | None = None
    cooldown_epochs: int = 0
    epochs: int = 10
    batch_size: int = 16
    lr: float = 1e-4
    head_lr: float | None = None
    weight_decay: float = 0.01
    swa_start: str | int | None = "auto"  # type: ignore[assignment]
    rank_weight: float = 1.0
    frozen_layers: int = 0
    lora: int | None = None
    gradient_checkpointing: bool = False
    layer_cache: str | os.PathLike[str] | None = None
    workers: int = 0
    n_jobs: int | None = None
    token_cache: str | os.PathLike[str] | None = None

    label_names_ = None
    _network_name = "net_"
    _said_cut = False  # whether the user knows that texts are cut

    def fit(
        self,
        texts: Sequence[str],
        Y: Any,
        *,
        label_names: Sequence[str] | None = None,
        features: Any = None,
        validation: tuple[Sequence[str], Any] | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
        checkpoint_every: int | None = None,
        log: str | os.PathLike[str] | None = None,
    ) -> LightXML:
        """Train on texts and their labels.

        Parameters
        ----------
        texts : list of str, n
        Y : (n, L) binary labels, sparse or dense; or the names of each text's labels
        label_names : sequence of str, optional
            Names of the columns of Y. By default the names that occur, sorted, if Y has names.
        features : (n, D) sparse, or a LabelTree; optional
            What the labels are clustered on, by default tf-idf of the texts.
        validation : (texts, Y), optional
            P@1, 3, 5 on these enter the history after each epoch.
        checkpoint : file, optional
            Saved there after each epoch (and ``checkpoint_every`` steps); an interrupted fit goes on from it.
        log : CSV file with a row per epoch, optional
        """
        Y, names = _named(Y, label_names)
        y = self._check(texts, Y)
        self.label_names_ = check_names("label_names", names, y.shape[1])
        loaded = load_encoder(self.encoder)
        tree = self._cluster(texts, y, features)
        self.order_ = tree.order
        self.n_labels_ = y.shape[1]
        net = self._build(loaded, torch.from_numpy(tree.offsets))
        self.net_, self.tokenizer_ = net, loaded.tokenizer
        tokens = self._tokens(texts, cache=self.token_cache, warn=True)
        data = fitting.Data(
            tokens, fitting.by_place(y, tree.order), tree.offsets, min(self._beam(), len(tree.offsets) - 1)
        )
        if validation is not None:
            held_out = self._check(validation[0], _named(validation[1], self.label_names_)[0])
            ones = np.ones(len(held_out.indices), np.float32)
            validation = validation[0], to_scipy(held_out.indptr, held_out.indices, ones, held_out.shape)
        chosen = self._chosen(len(texts))
        trainer = partial(self._phase, checkpoint, checkpoint_every, log, chosen.swa_start)
        options = {f.name for f in fields(fitting.Recipe)} - {"trainer", "head_lr", "warmup_epochs"}
        how = fitting.Recipe(
            trainer=trainer,
            head_lr=chosen.head_lr,
            warmup_epochs=chosen.warmup_epochs,
            **{name: getattr(self, name) for name in options},
        )
        self.history_ = fitting.run(net, data, how, self._validator(validation))
        return self

    def _phase(
        self,
        checkpoint: Any,
        every: int | None,
        log: Any,
        average: int | None,
        made: Any,
        phase: str,
        **changes: Any,
    ) -> Any:
        """The training loop of a phase; each has files of its own."""
        suffix = f".{phase}" if phase else ""
        files = {"checkpoint": checkpoint, "log": log}
        files = {name: f"{os.fspath(path)}{suffix}" if path else None for name, path in files.items()}
        device = self.net_.offsets.device
        options = {"device": device, "swa_start": average, "workers": self.workers, **files, **changes}
        return self._trainer(made, checkpoint_every=every, **options)

    def _chosen(self, n_texts: int) -> Chosen:
        """What was left open, by the steps of the run."""
        names = ("epochs", "batch_size", "accumulate", "lr")
        chosen = choose(n_texts, **{name: getattr(self, name) for name in names})
        if self.head_lr is not None:
            chosen = chosen._replace(head_lr=self.head_lr)
        if self.warmup_epochs is not None:
            chosen = chosen._replace(warmup_epochs=self.warmup_epochs)
        if isinstance(self.swa_start, str):
            if self.swa_start != "auto":
                raise ValueError(f'swa_start must be "auto", an epoch or None, got {self.swa_start!r}')
            return chosen
        return chosen._replace(swa_start=self.swa_start)

    def _beam(self) -> int:
        return beam_of(self.n_labels_) if self.beam is None else self.beam

    def predict(
        self, texts: Sequence[str], k: int = 5, *, proba: bool = False, n_jobs: int | None = None
    ) -> sp.csr_matrix:
        """The ``k`` best labels of each text, best first.

        Scores are probabilities either way (``proba`` is there so that all models can be called alike). Fewer
        than ``k`` labels come back where the ``beam`` clusters hold fewer.

        Returns
        -------
        scipy CSR (n, L) of scores
        """
        tokens = self._tokens(texts, n_jobs)
        k = self._k(k)
        ids = np.empty((len(texts), k), np.int32)
        scores = np.empty((len(texts), k), np.float32)
        by_length = np.argsort(-tokens.lengths, kind="stable")
        size = max(1, 4 * self.batch_size)
        with progress(len(texts), unit="text", desc="predict") as bar:
            for start in range(0, len(texts), size):
                rows = by_length[start : start + size]
                ids[rows], scores[rows] = self._best(tokens.batch(rows), k)
                bar.update(len(rows))
        given = ids >= 0
        if given.all():
            return top_csr(ids.reshape(-1), scores.reshape(-1), len(texts), self.n_labels_)
        indptr = np.concatenate([[0], np.cumsum(given.sum(1))])
        return to_scipy(indptr, ids[given], scores[given], (len(texts), self.n_labels_))

    def predict_file(
        self,
        path: str | os.PathLike[str],
        out: str | os.PathLike[str],
        k: int = 5,
        *,
        proba: bool = False,
        chunk_rows: int = 4096,
        n_jobs: int | None = None,
    ) -> int:
        """Predict a file with one text per line in constant memory; returns the number of lines."""
        pieces = (
            self.predict(list(lines.texts), k, n_jobs=n_jobs)
            for lines in read_chunks(path, chunk_rows, format="text")
        )
        return write_pieces(out, pieces)

    def candidates(self, texts: Sequence[str]) -> list[npt.NDArray[np.int32]]:
        """The labels each text's ``beam`` clusters hold, ascending: what is ranked, and the negatives of a step."""
        net = self._fitted()
        tokens = self._tokens(texts, warn=False)
        found = []
        for row in range(len(texts)):
            inputs = to_device(tokens.batch(np.array([row])), net.offsets.device)
            with torch.no_grad():
                chosen = net.choose(
                    net.recall(net.represent(inputs)), min(self._beam(), len(net.offsets) - 1)
                )
                places = net.candidates(chosen)[0].cpu().numpy()
            found.append(np.sort(self.order_[places[places >= 0]]))
        return found

    def save(self, directory: str | os.PathLike[str]) -> None:
        """Write the model as one folder (safetensors, JSON, the tokenizer's own files); an older one is replaced."""
        self._fitted()
        store.save(self, directory)

    @classmethod
    def load(cls, directory: str | os.PathLike[str], *, device: str | torch.device = "auto") -> LightXML:
        """Open what `save` wrote."""
        return store.load(cls, directory, device)

    # ---- what fit and load share

    def _build(self, encoder: Encoder, offsets: torch.Tensor) -> LightXMLNet:
        """The network for these clusters, on the device."""
        flat = int(offsets.diff().max()) == 1 if len(offsets) > 1 else True
        states = int(encoder.model.config.num_hidden_layers) + 1
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.random_state)
            net = LightXMLNet(
                encoder.model,
                offsets,
                bottleneck=None if flat else self.bottleneck,
                layers=min(self.layers, states),
                dropout=self.dropout,
                cls_last=cls_last(encoder.tokenizer),
                pooling=self.pooling,
                activation=self.activation,
                label_bias=self.label_bias,
                fan_in=self.fan_in,
                group_size=self.group_size,
                random_state=self.random_state,
            )
        return net.to(resolve_device(self.device)).eval()

    def _check(self, texts: Sequence[str], Y: Any) -> Csr:
        check_settings(self)
        y = labels(Y)
        if len(texts) != y.shape[0]:
            raise ValueError(f"texts has {len(texts)} entries, Y has {y.shape[0]} rows")
        if len(texts) == 0 or y.shape[1] == 0:
            raise ValueError(f"at least one text and one label are needed, got {len(texts)} and {y.shape[1]}")
        counts = np.diff(y.indptr)
        bare = [i for i, text in enumerate(texts) if counts[i] and isinstance(text, str) and not text.strip()]
        if bare:
            raise ValueError(
                f"text {bare[0]} is empty but has {counts[bare[0]]} label(s): {len(bare)} such row(s), drop them"
            )
        return y

    def _cluster(self, texts: Sequence[str], y: Csr, features: Any) -> LabelTree:
        n_labels = y.shape[1]
        if isinstance(features, LabelTree):
            if len(features.order) != n_labels:
                raise ValueError(f"the tree has {len(features.order)} labels, Y has {n_labels}")
            return features
        if self.mode == "flat" or (self.mode == "auto" and n_labels <= FLAT_LABELS):
            every = np.arange(n_labels, dtype=np.int32)
            return LabelTree(every, every, np.arange(n_labels + 1, dtype=np.int64))
        if features is None:
            from xmc_fast.text import TfidfVectorizer

            features = TfidfVectorizer(sublinear_tf=True, n_jobs=self.n_jobs).fit_transform(texts)
        Y = to_scipy(y.indptr, y.indices, np.ones(len(y.indices), np.float32), y.shape)
        return label_tree(
            features, Y, max_leaf=self.max_leaf, random_state=self.random_state, n_jobs=self.n_jobs
        )

    def _tokens(
        self, texts: Sequence[str], n_jobs: int | None = None, *, warn: bool | None = None, cache: Any = None
    ) -> Tokens:
        """Tokens of texts; the user hears once that some were cut."""
        encoder = Encoder(self._fitted().encoder, self.tokenizer_)
        warn = not self._said_cut if warn is None else warn
        jobs = self.n_jobs if n_jobs is None else n_jobs
        tokens = tokenize(texts, encoder, max_length=self.max_length, n_jobs=jobs, warn=warn, cache=cache)
        self._said_cut = self._said_cut or (warn and tokens.truncated > 0)
        return tokens

    def _best(
        self, inputs: dict[str, torch.Tensor], k: int
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
        """Labels (-1 where there are fewer than k) and scores, best first, then lower label."""
        net = self._fitted()
        device = net.offsets.device
        with autocast(self.precision, device):
            scores, places = net.best(to_device(inputs, device), k, min(self._beam(), len(net.offsets) - 1))
        found, place = scores.float().cpu().numpy(), places.cpu().numpy()
        ids = np.where(place >= 0, self.order_[place], -1).astype(np.int64)
        # one integer per candidate orders like (score descending, label ascending): scores are >= 0
        keys = (found.view(np.int32).astype(np.int64) << 32) - ids
        keys[place < 0] = -N_LABELS_LIMIT  # after all others
        if k < keys.shape[1]:
            part = np.argpartition(keys, -k, axis=1)[:, -k:]
            keys = np.take_along_axis(keys, part, 1)
            ids, found = np.take_along_axis(ids, part, 1), np.take_along_axis(found, part, 1)
        order = np.argsort(-keys, axis=1, kind="stable")
        out_ids = np.full((len(ids), k), -1, np.int32)
        out_scores = np.zeros((len(ids), k), np.float32)
        width = min(k, ids.shape[1])
        out_ids[:, :width] = np.take_along_axis(ids, order, 1)[:, :width]
        out_scores[:, :width] = np.take_along_axis(found, order, 1)[:, :width]
        return out_ids, out_scores

    def _k(self, k: int) -> int:
        if k < 1:
            raise ValueError(f"k must be at least 1, got {k}")
        return min(int(k), self.n_labels_)


def _named(Y: Any, names: Sequence[str] | None) -> tuple[Any, Sequence[str] | None]:
    """Labels as a matrix if they are names, else as they are; and the names of the columns, if they have any."""
    rows = list(Y) if isinstance(Y, Sequence) or hasattr(Y, "to_list") else []
    labelled = next((row for row in rows if isinstance(row, str | list | tuple) and len(row)), ())
    if not (isinstance(labelled, str) or any(isinstance(label, str) for label in labelled)):
        return Y, names
    found = encode(rows, names)
    return found.known, found.names
