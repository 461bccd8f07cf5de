"""Files that several machines share: an object store, a run in it, and who works on what."""
