"""Every private or undocumented name of other libraries that portico uses, one file a library."""
