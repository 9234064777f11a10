"""How a model is spread over IPUs: ``IPUConfig``."""

from portico.ipu.config.errors import IncompatibleIPUConfigError
from portico.ipu.config.ipu_config import IPUConfig

__all__ = ["IPUConfig", "IncompatibleIPUConfigError"]
