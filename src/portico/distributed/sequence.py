"""Sequence and context parallelism: every process of a group runs the model on a part of each sequence.

Only attention needs the whole sequence. With ``sp_size`` the processes exchange their parts around it, so that each
has all positions of some heads, and back (DeepSpeed-Ulysses, arXiv:2309.14509). With ``cp_size`` each gathers the keys
and values of all positions for its own queries (arXiv:2407.21783, section 3.3.2). The model is called with whole
batches, and returns the loss and the outputs of whole batches: :class:`SplitSequences` splits its inputs and joins its
outputs, so that neither the trainer nor the user's code sees the parts.

Shapes: B examples, L positions of the padded sequence, P processes of a group, S = L / P, H heads, D the size of one.
"""

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from math import gcd
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from transformers import PreTrainedConfig

from portico.compat import transformers as hf_compat
from portico.compat.lightning import process_group_timeout
from portico.compat.releases import refuse_before
from portico.compat.tree import map_tensors
from portico.distributed.processes import device_mesh, limit_collectives
from portico.errors import InputError

if TYPE_CHECKING:
    from lightning.pytorch.strategies import Strategy
    from torch.distributed import ProcessGroup


_NAME = "portico_sequence_parallel"  # of the attention, in a configuration
_ATTENTIONS = ("sdpa", "eager")
# How far the outputs of a split model may be from those of the whole model, relative to the largest.
_TOLERANCE, _TOLERANCE_IN_HALF_PRECISION = 1e-4, 5e-2


class Sharing(NamedTuple):
    """How many processes share each sequence, and what they send each other for attention."""

    size: int = 1
    gathers_keys: bool = False
    """Whether each gets all keys and values (``cp_size``), or all positions of some heads (``sp_size``)."""

    @property
    def argument(self) -> str:
        """The key of ``parallelism_config`` that asks for it."""
        return "cp_size" if self.gathers_keys else "sp_size"


UNSHARED = Sharing()


def sequence_sharing(strategy: object) -> Sharing:
    """Return how the processes of ``strategy`` share sequences."""
    return getattr(strategy, "sequence_sharing", UNSHARED)


def check_sequences(strategy: object, model: nn.Module) -> None:
    """Raise ``InputError`` if ``strategy`` splits sequences, and ``model`` cannot run on parts of them."""
    sharing = sequence_sharing(strategy)
    if sharing.size == 1:
        return
    base: Any = hf_compat.unwrap_peft_model(model)
    name, config = type(base).__name__, getattr(base, "config", None)
    text: Any = config.get_text_config() if isinstance(config, PreTrainedConfig) else None
    attention = getattr(text, "_attn_implementation", None)
    parameters = inspect.signature(base.forward).parameters
    missing = [name for name in ("input_ids", "attention_mask", "position_ids", "labels") if name not in parameters]
    if missing or getattr(config, "is_encoder_decoder", False):
        what = f"takes no `{'`, `'.join(missing)}`" if missing else "is an encoder with a decoder"
        raise InputError(
            f"`{sharing.argument}={sharing.size}` splits the sequences of models that take tokens, positions and a "
            f"label for each token, and {name} {what}; leave it out, or use a model for causal or masked language "
            "modelling or for token classification."
        )
    if attention not in _ATTENTIONS:
        raise InputError(
            f"`{sharing.argument}={sharing.size}` splits {' or '.join(_ATTENTIONS)} attention, and {name} uses "
            f"{attention!r}; load it with `attn_implementation='sdpa'`."
        )
    heads = text.num_attention_heads
    if heads % sharing.size and not sharing.gathers_keys:
        raise InputError(
            f"`sp_size={sharing.size}` does not divide the {heads} heads (`num_attention_heads`) of {name}; set a "
            "divisor, and `dp_replicate_size` or `dp_shard_size` for the other processes, or `cp_size`, which divides "
            "no heads."
        )
    refuse_before("5.4", f"`{sharing.argument}={sharing.size}`")


def split_sequences(model: nn.Module, strategy: "Strategy", sharing: Sharing) -> "SplitSequences | None":
    """Let each ``sharing.size`` processes in a row share the sequences of ``model``, until the result is removed.

    All processes call this, when they are connected and have the weights.

    Raises:
        InputError: If the model gives other results on parts of a sequence, which a small batch shows.
    """
    if sharing.size == 1:
        return None
    device = strategy.root_device
    mesh = device_mesh(device, (dist.get_world_size() // sharing.size, sharing.size), ("data", "sequence"))
    limit_collectives(mesh.get_all_groups(), process_group_timeout(strategy))
    split = SplitSequences(model, mesh.get_group("sequence"), sharing)
    is_exact = str(strategy.precision_plugin.precision).startswith(("32", "64"))
    try:
        split.check(device, _TOLERANCE if is_exact else _TOLERANCE_IN_HALF_PRECISION)
    except BaseException:
        split.remove()
        raise
    return split


class SplitSequences:
    """Hooks that split the inputs of ``model`` over ``group`` and join its outputs, and the attention between them.

    A forward pass with a cache, as in generation, is not split. A training pass with labels returns the loss and the
    outputs that are one value for each token; joined logits would be as large as without splitting.

    Args:
        model: The model; its configuration has sdpa or eager attention.
        group: Processes that share each sequence.
        sharing: How they do it.
    """

    def __init__(self, model: nn.Module, group: "ProcessGroup", sharing: Sharing) -> None:
        base = hf_compat.unwrap_peft_model(model)
        self._model, self._group = model, group
        self._sharing = sharing
        self._size, self._rank = group.size(), group.rank()
        self._config: Any = base.config
        self._names = list(inspect.signature(base.forward).parameters)
        self._takes_count = hf_compat.accepts_loss_kwargs(base)
        self._divides_by_count = False
        self._per_token: set[str] = set()  # outputs whose values belong to the tokens, also to the last one
        self._shifts_labels = getattr(base, "loss_function", None) is hf_compat.ForCausalLMLoss
        self._attention = str(self._config._attn_implementation)
        self._is_allowed = self._is_split = True
        self._part: _Part | None = None
        self._packed_BL: torch.Tensor | None = None
        hf_compat.register_attention(_NAME, self._attend, self._mask)
        self._config._attn_implementation = _NAME
        self._handles = [
            model.register_forward_pre_hook(self._split, with_kwargs=True),
            model.register_forward_hook(self._join, with_kwargs=True, always_call=True),
        ]

    def __deepcopy__(self, memo: dict[int, Any]) -> "SplitSequences":
        """Return the same object: callbacks that average weights copy the model, which shares its processes."""
        return self

    def remove(self) -> None:
        """Let the model run on whole sequences again."""
        if self._handles:
            self._config._attn_implementation = self._attention
        while self._handles:
            self._handles.pop().remove()

    # ---- Inputs ----

    def _split(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        inputs = {**dict(zip(self._names, args, strict=False)), **kwargs}
        # Generation keeps the keys of earlier tokens, and asks for the logits of the last token.
        is_generating = any(inputs.get(name) for name in ("use_cache", hf_compat.CACHE_NAME, "logits_to_keep"))
        self._is_split = self._is_allowed and not is_generating
        if not self._is_split:
            return args, kwargs
        inputs = map_tensors(self._broadcast_tensor, inputs)
        self._part = _Part(inputs, self._sharing, self._rank, shifts_labels=self._shifts_labels)
        self._packed_BL = self._part.packed_BL
        own = self._part.inputs
        return (), {**own, "use_cache": False} if "use_cache" in self._names else own

    def _broadcast_tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the tokens, labels or mask of the group's first process.

        Collators draw random numbers, and a run that is resumed on other processes may restore different states.
        """
        if tensor.is_floating_point():
            return tensor
        shared = tensor.contiguous()
        dist.broadcast(shared, group=self._group, group_src=0)
        return shared

    def _mask(self, *, q_length: int, kv_length: int, **options: Any) -> torch.Tensor | None:
        """Return the mask in the form that the model's attention takes, for all queries or for those of this process.

        Its shape is ``[B, 1, L, L]`` or ``[B, 1, S, L]``.
        """
        make_mask = hf_compat.mask_function(self._attention)
        if self._is_split:
            q_length = kv_length
            if self._sharing.gathers_keys:
                q_length //= self._size
                options["q_offset"] = self._rank * q_length
                # A kernel that knows no offset would take the first of these queries for the first of the sequence.
                options["allow_is_causal_skip"] = False
            if self._packed_BL is not None:
                options["mask_function"] = hf_compat.restrict_to_packed(options["mask_function"], self._packed_BL)
                options["allow_is_causal_skip"] = False
        return make_mask(q_length=q_length, kv_length=kv_length, **options)

    # ---- Attention ----

    def _attend(
        self,
        module: nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        **options: Any,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Attend to whole sequences, with some of the heads or with the queries of this process.

        Args:
            module: The attention module of the model.
            query: ``[B, H, S, D]``.
            key: ``[B, heads of keys, S, D]``; each is sent to all processes that need it.
            value: As ``key``.
            attention_mask: What :meth:`_mask` has returned.
            options: Passed on.

        Returns:
            ``[B, S, H, D]``, and no weights.
        """
        attend = hf_compat.attention_function(self._attention, module)
        if not self._is_split:
            return attend(module, query, key, value, attention_mask, **options)
        if self._sharing.gathers_keys:
            key, value = (_Gather.apply(tensor, self._group, 2) for tensor in (key, value))
            return attend(module, query, key, value, attention_mask, **options)[0], None
        copies = self._size // gcd(key.shape[1], self._size)
        if copies > 1:
            key, value = (tensor.repeat_interleave(copies, 1) for tensor in (key, value))
        query, key, value = (_Exchange.apply(tensor, self._group, 1, 2) for tensor in (query, key, value))
        with _groups_of_heads(module, query.shape[1] // key.shape[1]):
            output, _ = attend(module, query, key, value, attention_mask, **options)
        return _Exchange.apply(output, self._group, 1, 2), None

    # ---- Outputs ----

    def _join(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], outputs: Any) -> Any:
        part, self._part = self._part, None
        # Layers that are computed again in the backward pass are layers of a split pass.
        self._is_split = True
        if part is None or outputs is None:
            return outputs
        loss = outputs.get("loss")
        if loss is not None:
            loss = _Sum.apply(part.share_of_loss(loss, divides_by_count=self._divides_by_count), self._group)
        others = {name: value for name, value in outputs.items() if name != "loss"}
        if loss is not None and model.training and torch.is_grad_enabled():
            others = {name: value for name, value in others.items() if part.is_value_per_token(value)}
        joined: Any = map_tensors(lambda tensor: part.join(tensor, self._group), others)
        for name, value in joined.items():
            if part.shifts_labels and name not in self._per_token and getattr(value, "ndim", 0) == 2:
                # Values of the labels: the last token has no next one.
                joined[name] = value[:, :-1]
        return type(outputs)(loss=loss, **joined) if loss is not None else type(outputs)(**joined)

    # ---- The check of a model ----

    def check(self, device: torch.device, tolerance: float) -> None:
        """Run a small batch whole and in parts, and raise ``InputError`` if the loss or the logits differ.

        Pooled heads, convolutions, recurrent layers, and positions that the model counts by itself need the whole
        sequence. The batch also shows whether the loss is divided by ``num_items_in_batch``.

        Args:
            device: Where the batch is made.
            tolerance: Largest difference, relative to the largest value.
        """
        shape = (3, 4 * self._size - 1)  # a length that the processes do not divide
        vocabulary = self._config.get_text_config().vocab_size
        ids_BL = torch.randint(vocabulary, shape, generator=torch.Generator().manual_seed(0)).to(device)
        mask_BL = torch.ones_like(ids_BL)
        mask_BL[1, -2:] = 0
        mask_BL[2, :2] = 0
        with _evaluating(self._model), torch.no_grad():
            try:
                apart, half_loss = self._compare({"input_ids": ids_BL, "attention_mask": mask_BL})
            except Exception as error:
                raise self._refusal(" ".join(str(error).split())) from error
        dist.all_reduce(apart, dist.ReduceOp.MAX)
        if not apart.item() <= tolerance:
            raise self._refusal(f"they differ by {apart.item():.1g} of the largest value")
        self._divides_by_count = half_loss

    def _compare(self, batch: dict[str, torch.Tensor]) -> tuple[torch.Tensor, bool]:
        """Return how far outputs are apart, and whether the loss halves if the count of labels doubles."""
        mask_BL = batch["attention_mask"]
        self._is_allowed = False
        try:
            logits_BLC = self._model(**batch).logits
            # What eager attention predicts from a padding token depends on how much padding there is.
            is_counted_BL = mask_BL * F.pad(mask_BL[:, :-1], (1, 0), value=1)
            batch["labels"] = (batch["input_ids"] % logits_BLC.shape[-1]).masked_fill(is_counted_BL == 0, -100)
            whole = self._model(**batch)
            loss = whole.loss
            self._per_token = {name for name in whole if getattr(whole[name], "shape", ())[:2] == mask_BL.shape}
            count = {"num_items_in_batch": 2 * mask_BL.sum()} if self._takes_count else {}
            divides = bool(self._model(**batch, **count).loss < 0.75 * loss)
        finally:
            self._is_allowed = True
        split = self._model(**batch)
        pairs = ((loss, split.loss), (logits_BLC * mask_BL[..., None], split.logits * mask_BL[..., None]))
        apart = [(whole - joined).abs().max() / whole.abs().max() for whole, joined in pairs]
        return torch.stack(apart).max().float(), divides

    def _refusal(self, reason: str) -> InputError:
        return InputError(
            f"`{self._sharing.argument}={self._size}` gives each process a part of every sequence, and "
            f"{type(self._model).__name__} computes something else from parts than from whole sequences ({reason}); "
            "leave it out, or use a model whose tokens meet in attention only."
        )


class _Part:
    """The part of a batch that this process computes.

    Args:
        inputs: Whole inputs of the model, ``[B, length, ...]``.
        sharing: How many processes share the batch.
        rank: Number of this process among them.
        shifts_labels: Whether the loss compares each position with the next label.

    Raises:
        InputError: If an input is not a value for each token.
    """

    def __init__(self, inputs: Mapping[str, Any], sharing: Sharing, rank: int, *, shifts_labels: bool) -> None:
        self._sharing, size = sharing, sharing.size
        inputs = {name: value for name, value in inputs.items() if value is not None}
        self.num_items = inputs.pop("num_items_in_batch", None)
        for name in ("cu_seq_lens_q", "cu_seq_lens_k"):
            # Only flash attention reads the ends of packed sequences; positions tell them, too.
            inputs.pop(name, None)
        ids = inputs["input_ids"] if "input_ids" in inputs else inputs["inputs_embeds"]
        self.shape = batch_size, length = ids.shape[:2]
        self.padded_length = length + -length % size
        self.own = slice(rank * self.padded_length // size, (rank + 1) * self.padded_length // size)
        mask_BL = inputs.pop("attention_mask", None)
        positions = inputs.pop("position_ids", None)
        self.packed_BL: torch.Tensor | None = None
        if positions is None:
            positions = torch.arange(length, device=ids.device)[None]
        elif mask_BL is None:
            self.packed_BL = self._number_packed(positions.expand(batch_size, -1), is_causal=shifts_labels)
        self.shifts_labels = shifts_labels and "labels" in inputs and "shift_labels" not in inputs
        if self.shifts_labels:
            inputs["shift_labels"] = F.pad(inputs["labels"][:, 1:], (0, 1), value=-100)
        if shifts_labels and "labels" in inputs:
            inputs["labels"] = inputs["shift_labels"]
        inputs["position_ids"] = positions.expand(batch_size, -1)
        if mask_BL is None:
            # Also without padding: transformers would look for packed sequences in the positions of a part.
            mask_BL = torch.ones(self.shape, dtype=torch.long, device=ids.device)
        self._refuse_other_shapes({**inputs, "attention_mask": mask_BL})
        self.inputs: dict[str, Any] = {
            name: self._pad(name, value)[:, self.own].contiguous() if isinstance(value, torch.Tensor) else value
            for name, value in inputs.items()
        }
        # The mask of a whole sequence: attention has all keys.
        self.inputs["attention_mask"] = self._pad("attention_mask", mask_BL)
        self.num_labels = self.num_own_labels = torch.tensor(0)
        if "labels" in inputs:
            self.num_labels = inputs["labels"].ne(-100).sum()
            self.num_own_labels = self.inputs["labels"].ne(-100).sum()

    def share_of_loss(self, loss: torch.Tensor, *, divides_by_count: bool) -> torch.Tensor:
        """Return what this process adds to the loss of the batch, for ``loss``, the mean over its labels."""
        total = self.num_items if divides_by_count and self.num_items is not None else self.num_labels
        # The mean over no label is NaN.
        return torch.where(self.num_own_labels > 0, loss * self.num_own_labels, 0.0) / total

    def is_value_per_token(self, output: object) -> bool:
        """Return whether ``output`` is one value for each token, ``[B, S]``, such as its log probability."""
        return isinstance(output, torch.Tensor) and output.shape == (self.shape[0], self.own.stop - self.own.start)

    def join(self, tensor: torch.Tensor, group: "ProcessGroup") -> torch.Tensor:
        """Return an output of all processes, ``[B, length, ...]``, for this process's part ``[B, S, ...]``."""
        if tensor.ndim < 2 or tensor.shape[1] != self.own.stop - self.own.start:
            raise InputError(
                f"`{self._sharing.argument}` joins outputs with a value for each token, and the model returned one of "
                f"shape {list(tensor.shape)}; let it return none, or leave `{self._sharing.argument}` out."
            )
        whole: torch.Tensor = _Gather.apply(tensor, group, 1)
        return whole[:, : self.shape[1]]

    def _pad(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        around = [0, 0] * (tensor.ndim - 2) + [0, self.padded_length - self.shape[1]]
        return F.pad(tensor, around, value=-100 if name in ("labels", "shift_labels") else 0)

    def _number_packed(self, positions_BL: torch.Tensor, *, is_causal: bool) -> torch.Tensor | None:
        """Return the number of the packed sequence that each position belongs to, ``None`` for one sequence."""
        packed_BL = hf_compat.find_packed_sequence_indices(positions_BL)
        if packed_BL is None:
            return None
        if not is_causal:
            raise InputError(
                f"`position_ids` begin again inside a row, which packs several sequences, but with "
                f"`{self._sharing.argument}` only causal language models keep them apart; give an `attention_mask`, "
                "or do not pack."
            )
        last_B1 = packed_BL[:, -1:]
        return torch.cat([packed_BL, last_B1.expand(-1, self.padded_length - self.shape[1])], 1)

    def _refuse_other_shapes(self, inputs: Mapping[str, Any]) -> None:
        for name, value in inputs.items():
            is_mask = name == "attention_mask" and isinstance(value, torch.Tensor) and value.ndim != 2
            if isinstance(value, torch.Tensor) and (value.shape[:2] != self.shape or is_mask):
                raise InputError(
                    f"`{self._sharing.argument}={self._sharing.size}` splits inputs of shape {list(self.shape)}, a "
                    f"value for each token, and the batch has `{name}` of shape {list(value.shape)}; leave it out of "
                    f"the batch, or `{self._sharing.argument}`."
                )


# ---- Collectives ----


class _Exchange(torch.autograd.Function):
    """Split a tensor along one dimension over the processes, and join what they send along another."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, group: "ProcessGroup", split_dim: int, join_dim: int) -> torch.Tensor:
        ctx.inverse = group, join_dim, split_dim
        sent = torch.stack(tensor.chunk(group.size(), split_dim))
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent, group=group)
        return torch.cat(received.unbind(), join_dim)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return _Exchange.apply(*gradients, *ctx.inverse), None, None, None


class _Gather(torch.autograd.Function):
    """Join the parts of the processes along a dimension; their gradients for each part are summed."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, group: "ProcessGroup", dim: int) -> torch.Tensor:
        ctx.given = group, dim
        parts = tensor.new_empty((group.size() * len(tensor), *tensor.shape[1:]))
        dist.all_gather_single(parts, tensor.contiguous(), group=group)
        return torch.cat(parts.chunk(group.size()), dim)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return _SumOfParts.apply(*gradients, *ctx.given), None, None


class _SumOfParts(torch.autograd.Function):
    """Sum over the processes the part of a tensor that belongs to this one, along a dimension."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, group: "ProcessGroup", dim: int) -> torch.Tensor:
        ctx.given = group, dim
        sent = torch.cat(tensor.chunk(group.size(), dim))
        total = torch.empty_like(sent[: len(tensor)])
        dist.reduce_scatter_single(total, sent, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return _Gather.apply(*gradients, *ctx.given), None, None


class _Sum(torch.autograd.Function):
    """Sum a tensor over the processes.

    Each process computes the loss of the batch and differentiates it, so the gradient is the sum of theirs. It is thus
    as many times too large as a group has processes, and the strategy, which averages over all processes, divides by
    as much.
    """

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, group: "ProcessGroup") -> torch.Tensor:
        ctx.group = group
        total = tensor.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return _Sum.apply(*gradients, ctx.group), None


@contextmanager
def _groups_of_heads(module: Any, number: int) -> Iterator[None]:
    """Inside the block, let each head of keys in ``module`` serve ``number`` heads of queries."""
    before = getattr(module, "num_key_value_groups", None)
    if before is not None:
        module.num_key_value_groups = number
    try:
        yield
    finally:
        if before is not None:
            module.num_key_value_groups = before


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    training = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, was_training in training.items():
            module.training = was_training
