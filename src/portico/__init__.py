"""The Hugging Face ``Trainer`` API as a facade over Lightning."""

from portico.imports import lazy_exports, register_with_lightning

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__, neighbour="transformers")

register_with_lightning(
    accelerators={"ipu": "portico.ipu.accelerator:IPUAccelerator", "ort": "portico.ort.accelerator:ORTAccelerator"},
    strategies={
        "ipu": "portico.ipu.strategy:IPUStrategy",
        # Its name in Lightning 2.0 and in lightning-graphcore.
        "ipu_strategy": "portico.ipu.strategy:IPUStrategy",
        "ort": "portico.ort.strategy:ORTStrategy",
        "ort_ddp": "portico.ort.strategy:ORTDDPStrategy",
    },
)
