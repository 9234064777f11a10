"""Which module may import which: read from the syntax trees, nothing is imported."""

import ast
import graphlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

CONFIG_PACKAGES = ("hydra", "omegaconf")
FRAMEWORKS = ("torch", "lightning", "pytorch_lightning", "torchmetrics")
VENDOR_PACKAGES = ("poptorch", "popart", "onnxruntime", "torch_ort")
SPECIAL_ROOMS = ("mrc", "ipu", "ort", "gradient_descent")
NUMPY_ONLY = ("mrc.postprocess",)
TRAINER_FACING = ("mrc.postprocess.span_postprocessing",)  # its result is an EvalPrediction of transformers
VAGUE_NAMES = {"util", "utils", "helper", "helpers", "common", "manager", "managers"}


@dataclass(frozen=True)
class Import:
    """One imported name, with every way to read it: `from a import b` is `a.b`."""

    target: str
    line: int
    in_function: bool
    for_types_only: bool

    def is_of(self, *packages: str) -> bool:
        return any(f"{self.target}.".startswith(f"{package}.") for package in packages)


@dataclass(frozen=True)
class Module:
    name: str  # below the package: "mrc.spans"; "" is the package itself
    path: Path
    imports: tuple[Import, ...]

    def is_in(self, *rooms: str) -> bool:
        return any(f"{self.name}.".startswith(f"{room}.") for room in rooms)


def violations(package: Path) -> list[str]:
    """Return one line for each import or name that the rules forbid in the tree of a package."""
    modules = {module.name: module for module in _modules(package)}
    found = []
    for module in modules.values():
        found += _vague_name(module)
        for one in module.imports:
            found += [
                f"{module.path}:{one.line} imports {one.target}: {why}" for why in _wrong(module, one, package.name)
            ]
    found += _impure(modules, package.name)
    found += _circles(modules, package.name)
    return sorted(found)


def _modules(package: Path) -> Iterator[Module]:
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package).with_suffix("").parts
        location = parts[:-1]
        name = ".".join(location if parts[-1] == "__init__" else parts)
        tree = ast.parse(path.read_text(encoding="utf-8"))
        yield Module(name, path.relative_to(package.parent), tuple(_imports(tree, (package.name, *location))))


def _imports(node: ast.AST, location: tuple[str, ...], in_function=False, for_types=False) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        for target in _targets(child, location):
            yield Import(target, child.lineno, in_function, for_types)
        yield from _imports(
            child,
            location,
            in_function or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda),
            for_types or (isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test)),
        )


def _targets(node: ast.AST, location: tuple[str, ...]) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        base = location[: len(location) - node.level + 1] if node.level else ()
        source = ".".join([*base, *([node.module] if node.module else [])])
        return [f"{source}.{alias.name}" for alias in node.names]
    return []


def _wrong(module: Module, one: Import, package: str) -> Iterator[str]:
    """Say why a module may not import a name."""
    if one.is_of(*CONFIG_PACKAGES) and not module.is_in("cli"):
        yield "only cli knows the configuration tree"
    is_generic = module.name and not module.is_in("cli", *SPECIAL_ROOMS)
    if is_generic and one.is_of(*(f"{package}.{room}" for room in SPECIAL_ROOMS)):
        yield "generic parts do not know tasks and backends"
    for this, other in (("datamodule", "module"), ("module", "datamodule")):
        if module.is_in(this) and one.is_of(f"{package}.{other}"):
            yield "datamodule and module meet in the facade only"
    if one.is_of(*VENDOR_PACKAGES) and not one.in_function:
        yield "vendor packages are imported inside functions"


def _vague_name(module: Module) -> list[str]:
    vague = VAGUE_NAMES.intersection(part for name in module.path.with_suffix("").parts for part in name.split("_"))
    return [f"{module.path} has the vague name '{word}': name the thing" for word in sorted(vague)]


def _impure(modules: dict[str, Module], package: str) -> Iterator[str]:
    """Find what a pure module imports at run time, itself or through other modules of the package."""
    for module in modules.values():
        for path, one in _reached(module, modules, package) if module.is_in("plan", *NUMPY_ONLY) else ():
            if module.is_in("plan") and one.is_of(*FRAMEWORKS):
                yield f"{module.path} reaches {one.target} through {path}:{one.line}: plan is pure"
            is_numpy_only = module.is_in(*NUMPY_ONLY) and not module.is_in(*TRAINER_FACING)
            if is_numpy_only and not one.is_of(package, "numpy", *sys.stdlib_module_names):
                yield f"{module.path} reaches {one.target} through {path}:{one.line}: post-processing needs numpy only"


def _circles(modules: dict[str, Module], package: str) -> list[str]:
    """Find the first circle of run-time imports; an import for types alone may look back up."""
    graph = {module.name: _neighbours(module, modules, package) for module in modules.values()}
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return [f"{' -> '.join(reversed(error.args[1]))} import each other in a circle"]
    return []


def _neighbours(module: Module, modules: dict[str, Module], package: str) -> set[str]:
    names = set()
    for one in module.imports:
        if one.is_of(package) and not one.for_types_only:
            inner = one.target.removeprefix(f"{package}.")
            names.add(inner if inner in modules else inner.rpartition(".")[0])
    return {name for name in names if name and name in modules and name != module.name}


def _reached(start: Module, modules: dict[str, Module], package: str) -> Iterator[tuple[Path, Import]]:
    waiting, seen = [start], {start.name}
    while waiting:
        module = waiting.pop()
        for one in module.imports:
            if one.for_types_only:
                continue
            yield module.path, one
            inner = one.target.removeprefix(f"{package}.")
            # `from package.a import b`: b is a module of its own, or a name that lives in a.
            for name in (inner, inner.rpartition(".")[0]) if one.is_of(package) else ():
                if name and name in modules and name not in seen:
                    seen.add(name)
                    waiting.append(modules[name])
