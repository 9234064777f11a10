"""What the numbers and switches among the training arguments may be, read from their annotations."""

from functools import cache
from typing import get_args, get_type_hints

from portico.arguments import TrainingArguments
from portico.deprecated import RENAMED
from portico.value_rules import Rule

# Values below these fail deep inside torch or numpy, or divide by zero; other bounds transformers checks itself.
_LEAST = {
    "dataloader_num_workers": 0,
    "eval_accumulation_steps": 1,
    "gradient_accumulation_steps": 1,
    "learning_rate": 0,
    "num_train_epochs": 0,
    "per_device_eval_batch_size": 1,
    "per_device_train_batch_size": 1,
    "seed": 0,
    "weight_decay": 0,
}


@cache
def argument_rules() -> dict[str, Rule]:
    """Return a rule for each training argument that is a number, a switch, or one of them or null.

    Texts have none: most are the names of an enumeration, which refuses others by itself.
    """
    rules = {}
    for name, hint in get_type_hints(TrainingArguments).items():
        kinds = get_args(hint) or (hint,)
        if set(kinds) <= {bool, int, float, type(None)}:
            rules[name] = Rule(kinds, _LEAST.get(name))
    return rules | {old: rules[new] for old, new in RENAMED.items() if new in rules}
