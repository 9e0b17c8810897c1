"""Figures of this project, each measured beside what it is compared with. Adopters: leave."""
