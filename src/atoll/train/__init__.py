"""One loop; the jobs say what is trained and on what."""
