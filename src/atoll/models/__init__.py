"""The networks: experts and router, what they cost, adapters, checkpoints of ours and of others."""
