"""A finished run for others: a diffusers pipeline, a model card, the Hub."""
