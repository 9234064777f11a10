"""From ``layers_per_ipu`` to the IPU of each layer."""

from collections.abc import Sequence

from portico.ipu.config.errors import IncompatibleIPUConfigError

WILDCARD = -1


def layer_ipus(layers_per_ipu: Sequence[int], num_ipus: int, num_layers: int) -> list[int]:
    """Return the IPU of each layer.

    Args:
        layers_per_ipu: Layers on each IPU; -1 takes a share of those that are left, the last -1 what remains.
        num_ipus: IPUs of a replica; with one, all layers are on it.
        num_layers: Layers of the model.

    Raises:
        IncompatibleIPUConfigError: If the numbers do not fit.
    """
    if num_ipus == 1:
        return [0] * num_layers
    counts = [WILDCARD] * num_ipus if list(layers_per_ipu) == [WILDCARD] else list(layers_per_ipu)
    if len(counts) != num_ipus:
        raise IncompatibleIPUConfigError(
            "layers_per_ipu has a non-default value set, but its length does not match ipus_per_replica: "
            f"{list(layers_per_ipu)} for {num_ipus} IPUs; give one number of layers for each IPU."
        )
    left = num_layers - sum(count for count in counts if count != WILDCARD)
    open_ipus = [ipu for ipu, count in enumerate(counts) if count == WILDCARD]
    if left < 0 or (left and not open_ipus):
        raise IncompatibleIPUConfigError(
            "layers_per_ipu does not define the correct number of layers for the current model: "
            f"{list(layers_per_ipu)} places {num_layers - left} layers, and the model has {num_layers}; let the "
            "numbers add up, or use -1 for those that are left."
        )
    for ipu in open_ipus:
        counts[ipu] = left // len(open_ipus)
    if open_ipus:
        counts[open_ipus[-1]] += left % len(open_ipus)
    return [ipu for ipu, count in enumerate(counts) for _ in range(count)]
