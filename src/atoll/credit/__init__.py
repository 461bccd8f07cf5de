"""Who made a sample and what a part is worth: weights and velocities in, shares out."""
