"""From raw samples to clusters: readers that lose nothing silently, features, the partition."""
