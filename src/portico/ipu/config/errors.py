from portico.errors import InputError


class IncompatibleIPUConfigError(InputError):
    """Attributes of an ``IPUConfig`` do not go together, or do not fit the model."""
