import subprocess
import sys

import pytest

import portico
import portico.mrc
import portico.mrc.metrics


@pytest.mark.parametrize("package", [portico, portico.mrc, portico.mrc.metrics])
def test_every_public_name_exists(package):
    assert package.__all__ == dir(package)
    for name in package.__all__:
        # Constants have no `__name__`.
        assert getattr(getattr(package, name), "__name__", name) == name


@pytest.mark.parametrize("package", [portico, portico.mrc])
def test_unknown_name_lists_public_names(package):
    with pytest.raises(AttributeError, match=r"has no attribute 'Trainr'; it has .*MRCTrainer"):
        _ = package.Trainr


@pytest.mark.parametrize(
    "package",
    [
        "portico",
        "portico.gradient_descent",
        "portico.mrc",
        "portico.mrc.postprocess",
        "portico.mrc.metrics.scores",
        "portico.mrc.report",
    ],
)
def test_import_does_not_load_torch(package):
    script = f"import sys, {package}; assert not {{'torch', 'transformers', 'hydra'}} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True)
