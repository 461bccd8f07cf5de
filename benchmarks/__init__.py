"""Programs that measure; each prints ratios against a peer in the same run."""
