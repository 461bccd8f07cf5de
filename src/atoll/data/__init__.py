"""From raw samples to clusters."""
