"""The version of `poptorch` that is emulated."""

VERSION = "3.4.0+emulated"
