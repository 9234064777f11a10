"""Private names of torch that the compiler needs, in one place: torch may change them in any release."""

import torch._dynamo.config as dynamo_config
import torch._dynamo.exc as dynamo_errors
import torch._functorch.config as functorch_config
import torch.fx.experimental._config as fx_config

# Functions that occur in expressions of symbolic sizes.
import torch.utils._sympy.functions as size_functions

# `torch.export.default_decompositions` would keep composite operators.
from torch._decomp import core_aten_decompositions as core_aten_decompositions
from torch._decomp import get_decompositions as get_decompositions
from torch._dynamo import mark_static as mark_static
from torch._dynamo import register_backend as register_backend

# The documented way to write a training backend, though the module is private.
from torch._dynamo.backends.common import aot_autograd as aot_autograd

# The only count of graph breaks.
from torch._dynamo.utils import counters as counters
from torch._guards import TracingContext as TracingContext
from torch._prims.rng_prims import run_with_rng_state as run_with_rng_state
from torch._subclasses.fake_tensor import unset_fake_temporarily as unset_fake_temporarily
from torch.fx.experimental.symbolic_shapes import statically_known_true as statically_known_true
from torch.utils._pytree import tree_map as tree_map
from torch.utils._pytree import tree_map_only as tree_map_only

__all__ = ["dynamo_config", "dynamo_errors", "functorch_config", "fx_config", "size_functions"]
