"""Whether work that strangers hand in is the work that they were given; cheapest checks first."""
