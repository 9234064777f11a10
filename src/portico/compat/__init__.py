"""Every private or undocumented name of other libraries that portico uses, in one file per library."""
