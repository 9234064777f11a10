"""The numbers of the report, in numpy and without any markup."""
