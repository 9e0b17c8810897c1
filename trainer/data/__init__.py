"""Rows: where they come from, how they are split, encoded and batched. Adopters: leave."""
