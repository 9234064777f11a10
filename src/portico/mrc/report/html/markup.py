import html

# HTML allows no control characters but tab, newline and carriage return.
_CONTROLS = dict.fromkeys((*range(9), 11, 12, *range(14, 32), *range(127, 160)), "\ufffd")


def escaped(value: object) -> str:
    """Return the value's text, safe inside an HTML element or a quoted attribute."""
    return html.escape(str(value).translate(_CONTROLS), quote=True)
