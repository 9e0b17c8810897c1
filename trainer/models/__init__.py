"""The rooms an adopter changes: `tabular.py` (the architectures) and `embedding.py`. Adopters: change."""
