"""Private names of torch that the compiler needs, in one place: torch may change them in any release."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from unittest.mock import patch

import torch
import torch._dynamo.config as dynamo_config
import torch._dynamo.exc as dynamo_errors
import torch._functorch._aot_autograd.autograd_cache as autograd_cache
import torch._functorch.config as functorch_config
import torch.compiler.config
import torch.fx.experimental._config

# Functions that occur in expressions of symbolic sizes.
import torch.utils._sympy.functions as size_functions

# `torch.export.default_decompositions` would keep composite operators.
from torch._decomp import core_aten_decompositions as core_aten_decompositions
from torch._decomp import get_decompositions as get_decompositions
from torch._dynamo import disable as without_tracing
from torch._dynamo import mark_static as mark_static
from torch._dynamo import register_backend as register_backend

# The only count of graph breaks.
from torch._dynamo.utils import counters as counters
from torch._functorch._aot_autograd.schemas import SerializableAOTDispatchCompiler
from torch._functorch.aot_autograd import aot_module_simplified as _aot_module_simplified
from torch._guards import TracingContext as TracingContext
from torch._inductor.codecache import FxGraphCache
from torch._inductor.output_code import OutputCode as OutputCode
from torch._prims.rng_prims import run_with_rng_state as run_with_rng_state
from torch._subclasses.fake_tensor import unset_fake_temporarily as unset_fake_temporarily
from torch.fx import GraphModule, graph
from torch.fx.experimental.symbolic_shapes import statically_known_true as statically_known_true
from torch.utils._config_module import ConfigModule
from torch.utils._pytree import tree_map as tree_map
from torch.utils._pytree import tree_map_only as tree_map_only

if TYPE_CHECKING:
    from torch._inductor.compile_fx import _CompileFxKwargs

__all__ = ["dynamo_config", "dynamo_errors", "functorch_config", "size_functions", "without_tracing"]

# torch replaces these modules by instances of a class, with a method `patch`.
fx_config = cast(ConfigModule, torch.fx.experimental._config)
_compiler_config = cast(ConfigModule, torch.compiler.config)
# Its annotation asks for a dict of decompositions, where any mapping works.
aot_module_simplified: Callable[..., Callable[..., Any]] = _aot_module_simplified

_FOLDER = "TORCHINDUCTOR_CACHE_DIR"
# Before 2.13, torch cannot cache traces of other compilers than its own.
CACHES_TRACES = torch.__version__ >= "2.13"


def box_inputs(module: GraphModule) -> Callable[[list[Any]], Any]:
    """Return ``module`` as a function of a list of its inputs, which it empties.

    Each input is then freed after its last use, so that saved tensors go while the backward runs; releases of torch
    that do not offer this keep them until its end.
    """
    codegen = getattr(graph, "_BoxedCodeGen", None)
    if codegen is None:
        return lambda inputs: module(*[inputs.pop(0) for _ in list(inputs)])
    module.graph.set_codegen(codegen())
    module.recompile()
    return module


def cacheable(kind: type[OutputCode], compiler: Callable[..., OutputCode]) -> Any:
    """Mark a graph compiler whose results AOTAutograd may cache."""
    return SerializableAOTDispatchCompiler(kind, compiler)


class _KeyDetails(autograd_cache.AOTAutogradCacheDetails):
    """A key of AOTAutograd's cache without inductor's settings: collecting them imports all of inductor."""

    def _init_fx_graph_hash_details(
        self, gm: GraphModule, example_inputs: Sequence[Any], fx_config: "_CompileFxKwargs"
    ) -> None:
        FxGraphCache._check_can_cache(gm, example_inputs, fx_config)
        self.gm = gm
        self.example_inputs = list(example_inputs)
        self.cache_key_tag = _compiler_config.cache_key_tag
        self.default_dtype = torch.get_default_dtype()


@contextmanager
def caching_autograd(folder: Path | None, key: str) -> Iterator[None]:
    """Let AOTAutograd cache its traces in ``folder``, if one is given; later runs find them by the same ``key``.

    Before torch 2.13, each run traces anew.

    torch's cache is part of inductor, which chooses the folder by an environment variable.
    """
    if folder is None or not CACHES_TRACES:
        with functorch_config.patch(enable_autograd_cache=False):
            yield
        return
    options = {
        "bundled_autograd_cache": True,
        # An entry holds both graphs.
        "force_non_lazy_backward_lowering": True,
    }
    before = os.environ.get(_FOLDER)
    tag = _compiler_config.cache_key_tag + key
    try:
        os.environ[_FOLDER] = str(folder)
        with (
            functorch_config.patch(options),
            _compiler_config.patch(cache_key_tag=tag),
            patch.object(autograd_cache, "AOTAutogradCacheDetails", _KeyDetails),
        ):
            yield
    finally:
        if before is None:
            os.environ.pop(_FOLDER, None)
        else:
            os.environ[_FOLDER] = before
