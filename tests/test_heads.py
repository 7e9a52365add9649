"""Output layers under transformers: its Trainer runs one from end to end."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from reference import tiny_encoder  # noqa: E402
from reference.lightxml_case import N_LABELS, TEXTS, Y  # noqa: E402
from xmc_fast.nn import EncoderForLabels, LabelLoss, pad_labels, sparse_bce  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_torch_thread")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_encoder.save(tmp_path_factory.mktemp("encoder"), TEXTS, layers=2)


def rows(model):
    return [{**model.tokenizer(t), "labels": Y[i].indices.tolist()} for i, t in enumerate(TEXTS)]


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning")
def test_transformers_trainer(folder, tmp_path):
    pytest.importorskip("accelerate")
    model = EncoderForLabels.from_pretrained(folder, N_LABELS, fan_in=8, dropout=0.0, k=3)
    how = transformers.TrainingArguments(
        str(tmp_path / "out"),
        num_train_epochs=25,
        per_device_train_batch_size=8,
        learning_rate=5e-3,
        use_cpu=True,
        report_to=[],
        save_strategy="epoch",
        save_total_limit=1,
        disable_tqdm=True,
        logging_strategy="no",
        eval_strategy="no",
    )
    data = rows(model)
    trainer = transformers.Trainer(model, how, train_dataset=data, data_collator=pad_labels(model.tokenizer))
    trainer.train()
    found = trainer.predict(data)
    scores, ids = found.predictions
    assert scores.shape == (len(TEXTS), 3)
    assert np.mean([Y[i, best] for i, best in enumerate(ids[:, 0])]) > 0.7  # 0.12 by chance
    assert found.metrics["test_loss"] < 9  # 12 at the start
    other = EncoderForLabels.from_pretrained(folder, N_LABELS, fan_in=8, random_state=9).eval()
    trainer.save_model(str(tmp_path / "saved"))
    from safetensors.torch import load_file

    other.load_state_dict(load_file(tmp_path / "saved/model.safetensors"))
    batch = pad_labels(model.tokenizer)(data[:4])
    with torch.no_grad():
        assert torch.equal(other(**batch)["ids"][:, :3], torch.from_numpy(ids[:4].copy()))


def test_loss_and_best_labels(folder):
    model = EncoderForLabels.from_pretrained(folder, N_LABELS, fan_in=8)
    batch = pad_labels(model.tokenizer)(rows(model)[:4])
    assert set(model.train()(**batch)) == {"loss"}  # no logits, no top-k while training
    out = model.eval()(**batch)
    x = model.embedding({name: batch[name] for name in ("input_ids", "attention_mask")})
    assert torch.equal(out["loss"], sparse_bce(x, model.output.layer, Y[:4]))
    assert torch.equal(out["ids"], model.output.layer.topk(x, 5)[1])
    assert set(model(batch["input_ids"])) == {"scores", "ids"}


def test_errors(folder):
    with pytest.raises(ValueError, match="pooling must be"):
        EncoderForLabels.from_pretrained(folder, 3, pooling="max")
    with pytest.raises(ValueError, match="loss must be one of"):
        LabelLoss(torch.nn.Identity(), "hinge")
