"""Experiments of ``conf`` on models of a few hundred weights, which train for three epochs of a few steps."""

BERT = ("hidden_size=16", "num_hidden_layers=1", "num_attention_heads=2", "intermediate_size=16")
GPT2 = ("n_embd=16", "n_layer=1", "n_head=2")
T5 = ("d_model=16", "d_kv=8", "d_ff=16", "num_layers=1", "num_heads=2")
SMALL = (
    "args.num_train_epochs=3",
    "args.per_device_train_batch_size=8",
    "args.save_strategy=steps",
    "args.save_steps=1",
    "args.eval_strategy=steps",
    "args.eval_steps=1",
    "args.disable_tqdm=true",
    "args.report_to=none",
    "args.use_cpu=true",
    "print_config=false",
)
SOURCES = "data.sources=[{num_train: 16, num_validation: 8, seed: 0}, {num_train: 12, num_validation: 8, seed: 1}]"


def overrides(experiment: str, *others: str, shape: tuple[str, ...] = BERT) -> tuple[str, ...]:
    reading = ("preprocess.vocab_size=300",) if experiment.startswith("mrc") else ()
    data = ("data.num_train=24", "data.num_validation=8")
    return (f"experiment={experiment}", *(f"model.{size}" for size in shape), *data, *reading, *SMALL, *others)


# All models but those of T5 have dropout.
KINDS = {
    "mrc": overrides("mrc"),
    **{
        order: overrides("mrc", f"args.train_sampling_strategy={order}")
        for order in ("random", "sequential", "batch_rebalance")
    },
    "accumulation": overrides("mrc", "args.gradient_accumulation_steps=2", "args.per_device_train_batch_size=4"),
    "workers": overrides("mrc", "args.dataloader_num_workers=2"),
    "packing": overrides("mrc", "preprocess.packing=true"),
    "data_seed": overrides("mrc", "args.data_seed=3"),
    "max_steps": overrides("mrc", "args.max_steps=8"),
    # Four stages need three layers, and seven micro-batches of one window each.
    "mrc_ipu": overrides(
        "mrc_ipu",
        *("args.per_device_train_batch_size=1", "args.per_device_eval_batch_size=4"),
        *("strategy.gradient_accumulation_steps=7", "strategy.inference_device_iterations=1"),
        shape=(BERT[0], "num_hidden_layers=3", *BERT[2:]),
    ),
    "mrc_ort": overrides("mrc_ort"),
    "sources": overrides("mrc_multi_source", SOURCES),
    "mrc_seq2seq": overrides("mrc_seq2seq", shape=T5),
    "mrc_fid": overrides("mrc_fid", shape=T5),
    "text_classification": overrides("text_classification"),
    "token_classification": overrides("token_classification"),
    "multiple_choice": overrides("multiple_choice"),
    "image_classification": overrides("image_classification"),
    "masked_lm": overrides("masked_lm"),
    "causal_lm": overrides("causal_lm", shape=GPT2),
    "summarization": overrides("summarization", shape=T5),
    "translation": overrides("translation", shape=T5),
}
# Two processes, of which the first starts the second.
LAUNCHED = {
    "launched": overrides("mrc", "strategy=ddp", "strategy.accelerator=cpu", "args.per_device_train_batch_size=4")
}
TOPICS = (
    *("experiment=gradient_descent", "data.num_train=96", "data.num_validation=32", "trainer.num_epochs=3"),
    *("trainer.patience=null", "trainer.cuda_device=-1", "print_config=false"),
)
