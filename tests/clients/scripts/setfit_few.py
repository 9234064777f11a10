"""A few-shot classifier, with the trainer of setfit."""

import sys

import torch
from client_models import encoder_folder, words
from datasets import Dataset
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
from setfit import SetFitHead, SetFitModel, Trainer, TrainingArguments

torch.manual_seed(0)
encoder = Transformer(encoder_folder())
body = SentenceTransformer(modules=[encoder, Pooling(encoder.get_embedding_dimension())], device="cpu")
model = SetFitModel(model_body=body, model_head=SetFitHead(in_features=16, out_features=2, device="cpu"))
few = Dataset.from_dict({"text": words(12, seed=1), "label": [0, 1] * 6})
trainer = Trainer(
    model=model,
    args=TrainingArguments(
        output_dir=sys.argv[1], max_steps=6, batch_size=4, num_epochs=1, save_steps=3, report_to="none"
    ),
    train_dataset=few,
)
trainer.train()
body.save_pretrained(f"{sys.argv[1]}/final")
