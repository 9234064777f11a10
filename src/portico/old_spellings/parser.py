"""A parser of command lines and of files of arguments, some of which were written for transformers 4."""

from typing import Any

import transformers

from portico.old_spellings.renamed import TakesOldNames, present_names


class HfArgumentParser(transformers.HfArgumentParser):
    """``transformers.HfArgumentParser`` that takes arguments under their older names from dicts and files too.

    On a command line the parser of transformers takes them as well; in a dict, in JSON and in YAML it looks for the
    present names alone, before ``portico.TrainingArguments`` can see them.
    """

    def parse_dict(self, args: dict[str, Any], allow_extra_keys: bool = False) -> tuple[Any, ...]:
        """Return an instance of each dataclass, made of ``args``.

        Raises:
            ValueError: If no dataclass has a key, and ``allow_extra_keys`` is off.
            InputError: If two names of one argument are there and differ.
        """
        if any(isinstance(kind, TakesOldNames) for kind in self.dataclass_types):
            args = present_names(args)
        return super().parse_dict(args, allow_extra_keys=allow_extra_keys)
