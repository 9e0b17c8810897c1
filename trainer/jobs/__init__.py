"""Jobs for the training service, as files: check them, price them. Adopters: leave; change configs/jobs/."""
