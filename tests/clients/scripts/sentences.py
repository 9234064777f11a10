"""Train a sentence encoder on pairs, with the trainer of sentence-transformers."""

import sys

import torch
from client_models import encoder_folder, words
from datasets import Dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

folder = encoder_folder()
torch.manual_seed(0)
encoder = Transformer(folder)
model = SentenceTransformer(modules=[encoder, Pooling(encoder.get_embedding_dimension())], device="cpu")
pairs = Dataset.from_dict({"anchor": words(24, seed=1), "positive": words(24, seed=2)})
trainer = SentenceTransformerTrainer(
    model=model,
    args=SentenceTransformerTrainingArguments(
        output_dir=sys.argv[1],
        max_steps=6,
        per_device_train_batch_size=4,
        eval_strategy="steps",
        eval_steps=3,
        save_steps=3,
        logging_steps=1,
        report_to="none",
        use_cpu=True,
    ),
    train_dataset=pairs,
    eval_dataset=pairs.select(range(8)),
    loss=MultipleNegativesRankingLoss(model),
)
trainer.train()
