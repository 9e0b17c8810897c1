"""Hyperparameter studies: one study file, tried here as the service tries it. Adopters: leave."""
