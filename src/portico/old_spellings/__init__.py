"""Spellings of ``transformers`` 4, accepted with one warning that names the present one."""
