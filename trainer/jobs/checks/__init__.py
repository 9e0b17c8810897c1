"""The checks of a job file, one subject a file. Adopters: add a file here and list it in check.py."""
