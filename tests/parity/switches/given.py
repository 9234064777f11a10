"""Controls that let portico ignore an argument, a dataset or a part."""

import portico
from parity import peers


def ignoring(*names):
    """Return a control under which portico ignores these options of :func:`parity.peers.run`."""

    def switch(patch):
        patch.setattr(peers, "run", _dropping(peers.run, names))

    return switch


def ignoring_part(name):
    """Return a control under which portico ignores an argument of the trainer's constructor."""

    def switch(patch):
        construct = portico.Trainer.__init__

        def without(self, *args, **parts):
            parts.pop(name)
            construct(self, *args, **parts)

        patch.setattr(portico.Trainer, "__init__", without)

    return switch


def _dropping(run, names):
    def run_without(library, *args, **options):
        kept = options if library is not portico else {key: options[key] for key in options if key not in names}
        return run(library, *args, **kept)

    return run_without
