"""From samples to numbers."""
