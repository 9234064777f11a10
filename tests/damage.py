"""Damage to files, drawn from a seeded `random.Random`: to the values of a JSON tree, to its text, to its bytes."""

import gzip
import os
import resource
from contextlib import contextmanager
from copy import deepcopy

HUGE = "9" * 5000  # digits, more than Python converts to an int
SURROGATE = "\ud800"
VALUES = [
    *(None, True, False, 0, -1, 1, 3, 2**31, 2**63, 2**64, -(2**63) - 1, 10**4000, 1.5, -0.0, 1e308),
    *(float("nan"), float("inf"), float("-inf"), "", " ", "\n", "0", "Oslo", "\x00", SURROGATE, "é\u2028", "x" * 3000),
    *([], {}, [[]], [{}], [None], {"": None}, {"a": [1, 2], "b": [1]}, {SURROGATE: SURROGATE}, [1, [2, [3]]]),
]


class Touch:
    """Creates a folder when it is unpickled."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


def places(tree, path=()):
    """Yield the path of every value of a tree, its own first."""
    yield path
    entries = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in entries:
        yield from places(value, (*path, key))


def at(tree, path):
    for key in path:
        tree = tree[key]
    return tree


def nested(rng, depth):
    value = None
    for _ in range(depth):
        value = [value] if rng.random() < 0.5 else {"a": value}
    return value


def damaged_tree(rng, tree):
    """Return a copy of a list or an object with some of its values replaced, removed, repeated, moved or retyped."""
    tree = deepcopy(tree)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        path = rng.choice(list(places(tree))[1:] or [()])
        if not path:
            return rng.choice(VALUES)
        parent, key = at(tree, path[:-1]), path[-1]
        parent[key] = _damaged_value(rng, tree, parent[key])
        kind = rng.randrange(8)
        if kind == 0:
            del parent[key]
        elif kind == 1 and isinstance(parent, dict):
            parent[rng.choice([*parent, "id", "question", "paragraphs", "detected_answers", ""])] = parent.pop(key)
        elif kind == 2 and isinstance(parent, list):
            parent.insert(rng.randrange(len(parent) + 1), deepcopy(parent[key]))
    return tree


def _damaged_value(rng, tree, value):
    kind = rng.randrange(10)
    if kind < 4:
        return deepcopy(rng.choice(VALUES))
    if kind == 4:
        return deepcopy(at(tree, rng.choice(list(places(tree))[1:])))
    if kind == 5:
        return rng.choice(([value], {"a": value}, [value, value]))
    if kind == 6 and isinstance(value, int | float):
        rounded = float(value) if abs(value) < 1e308 else value
        return rng.choice((value + 1, value - 1, -value, value * 10, rounded, str(value)))
    if kind == 6 and isinstance(value, str):
        cut = rng.randrange(len(value) + 1)
        return rng.choice((value[:cut], value[cut:], value[:cut] + SURROGATE + value[cut:], value * 2, list(value)))
    if kind == 7 and isinstance(value, list) and value and all(isinstance(entry, dict) for entry in value):
        return {key: [entry.get(key) for entry in value] for key in value[0]}
    if kind == 7 and isinstance(value, dict) and value:
        return list(value.values())
    if kind == 8:
        return nested(rng, rng.choice((3, 50, 150)))
    return value


def damaged_text(rng, text):
    """Return JSON whose text is damaged where no tree could express it."""
    place = rng.randrange(len(text) + 1)
    before, after = text[:place], text[place:]
    digits = [index for index, character in enumerate(text) if character.isdigit()]
    kind = rng.randrange(9)
    if kind == 0:
        return before
    if kind == 1:
        return before + after[rng.randrange(1, 40) :]
    if kind == 2 and digits:
        index, depth = rng.choice(digits), rng.choice((100, 700, 900))
        return (
            text[:index]
            + rng.choice((HUGE, "[" * depth + "]" * depth, '{"a":' * depth + "1" + "}" * depth))
            + text[index + 1 :]
        )
    if kind == 3:
        return before + rng.choice("[{") * rng.choice((5, 1000, 100_000)) + after
    if kind == 4 and "{" in text:
        # The first of two equal keys.
        return text.replace(
            "{", rng.choice(('{"id": 1, ', '{"question": null, ', '{"context": NaN, ')), rng.randrange(1, 4)
        )
    if kind == 5:
        return (
            before
            + rng.choice(("\x00", "\u2028", "\r", "\n", "\ufeff", "NaN", "-", '"', "\\", "\\ud800", "/*"))
            + after
        )
    if kind == 6:
        return text.replace("\n", "\r\n") if "\n" in text else text + "\n" + text
    if kind == 7:
        return " \n" * rng.randrange(1, 50) + text
    return before + after[::-1]


def damaged_bytes(rng, data):
    """Return bytes of which some are changed, missing, doubled, or in another encoding."""
    data = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 8))):
        if not data:
            break
        place = rng.randrange(len(data))
        kind = rng.randrange(6)
        if kind == 0:
            data[place] ^= 1 << rng.randrange(8)
        elif kind == 1:
            del data[place:]
        elif kind == 2:
            del data[place : place + rng.randrange(1, 20)]
        elif kind == 3:
            data[place:place] = rng.randbytes(rng.randrange(1, 20))
        elif kind == 4:
            data += data[: rng.randrange(1, 40)]
        else:
            data[place : place + 1] = rng.choice((b"\xff", b"\xed\xa0\x80", b"\xc0\x80", b"\x00", b"\xef\xbb\xbf"))
    return bytes(data)


def damaged_file(rng, text):
    """Return the bytes of a file in which JSON is damaged, or wrongly encoded, or compressed and then damaged."""
    kind = rng.randrange(8)
    if kind < 4:
        return damaged_text(rng, text).encode(errors="surrogatepass")
    if kind == 4:
        return text.encode(rng.choice(("utf-16", "utf-8-sig", "utf-32-le", "utf-7")))
    return damaged_bytes(rng, gzip.compress(text.encode(), mtime=0) if kind < 7 else text.encode())


@contextmanager
def largest_file(size):
    """Let the system refuse larger files, as a full disk would."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
