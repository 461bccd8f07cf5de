"""From samples to numbers: distances with intervals, copies, diversity, what each part is worth."""
