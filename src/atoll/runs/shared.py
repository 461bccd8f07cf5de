"""What a stage says of itself that holds the network for the low noise of all clusters."""

from atoll.runs.records import NetworkContents, Share


class SharedNetworkContents(NetworkContents):
    """The network that stands in for experts where little noise is left."""

    STAGE = "shared"
    below: Share
    """The time below which it is asked in their place."""
