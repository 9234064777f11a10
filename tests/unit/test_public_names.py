import subprocess
import sys

import pytest

import portico
import portico.mrc
import portico.mrc.metrics


@pytest.mark.parametrize("package", [portico, portico.mrc, portico.mrc.metrics])
def test_every_offered_name_is_there(package):
    assert package.__all__ == dir(package)
    for name in package.__all__:
        # Constants have no name of their own.
        assert getattr(getattr(package, name), "__name__", name) == name


@pytest.mark.parametrize("package", [portico, portico.mrc])
def test_an_unknown_name_lists_the_known_ones(package):
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
def test_importing_a_package_does_not_import_torch(package):
    script = f"import sys, {package}; assert not {{'torch', 'transformers', 'hydra'}} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True)
